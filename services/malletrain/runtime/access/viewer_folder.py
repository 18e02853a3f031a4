"""What a dashboard of another account or container needs, in a folder of its own: it never sees the state folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from malletrain.common.files import write_atomically
from malletrain.runtime.access.token_file import TokenFile
from malletrain.runtime.errors import UnavailableError

VIEWER_TOKEN = "token"
VIEWER_AUTHORITY = "ca.pem"
VIEWER = "malletrain-dashboard"
"""User of the token."""
READABLE = 0o640
_FOLDER = 0o750
_LOOK_SECONDS = 60.0


class ViewerFolder:
    """Keeps a viewer's token, and the certificate by which callers know the services, in a folder."""

    def __init__(self, folder: Path, token: TokenFile, authorities: Sequence[Path], lifespan_seconds: float) -> None:
        """Write nothing yet.

        Args:
            folder: The folder; made if there is none.
            token: The token's file in it.
            authorities: Files with the certificates by which callers know the services.
            lifespan_seconds: Lifespan of each token.
        """
        self._folder = folder
        self._token = token
        self._authorities = authorities
        self._lifespan = lifespan_seconds

    def renew(self) -> bool:
        """Write what is missing or out of date; returns whether anything was.

        Raises:
            UnavailableError: it can't be written, or there is no certificate yet.
        """
        try:
            self._folder.mkdir(mode=_FOLDER, parents=True, exist_ok=True)
            renewed = self._copy_authority()
        except (OSError, UnicodeDecodeError) as error:
            raise UnavailableError(f"access.viewer_folder: {error}") from error
        return self._token.renew() or renewed

    async def keep(self) -> None:
        """Look every minute, more often where tokens live for minutes only, until cancelled."""
        log = structlog.get_logger(__name__)
        while True:
            try:
                if self.renew():
                    log.info("viewer's token or certificate renewed", folder=str(self._folder))
            except UnavailableError as error:
                log.error("viewer's folder not renewed", error=str(error))
            await asyncio.sleep(min(_LOOK_SECONDS, self._lifespan / 4))

    def _copy_authority(self) -> bool:
        wanted = "".join(path.read_text(encoding="ascii") for path in self._authorities)
        path = self._folder / VIEWER_AUTHORITY
        if path.is_file() and path.read_text(encoding="ascii") == wanted:
            return False
        write_atomically(path, wanted, mode=READABLE, exact=True)
        return True
