"""Files with a token that the services keep valid, and the folder of a dashboard of another account or container.

The owner's makes the account which runs the services, and nobody else, an operator: a single user types and notices
nothing. Other programs that follow the services may have one of a smaller role.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from malletrain.common.files import write_atomically
from malletrain.runtime.access.identity import Role, UnauthenticatedError
from malletrain.runtime.access.revocation import RevocationFile
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import UnavailableError

_LOOK_SECONDS = 60.0
_PRIVATE = 0o600


class TokenFile:
    """Writes a token to a file, and renews it once half of its lifespan is over, or when it was revoked."""

    def __init__(
        self,
        path: Path,
        user: str,
        tokens: Tokens,
        revoked: RevocationFile,
        clock: Clock,
        lifespan_seconds: float,
        role: Role = Role.OPERATOR,
        mode: int = _PRIVATE,
    ) -> None:
        """Nothing happens before `keep_renewed`.

        Args:
            path: The file.
            user: Whom the token identifies.
            tokens: Signs it.
            revoked: What has been revoked.
            clock: Wall clock.
            lifespan_seconds: Lifespan of each token.
            role: Role of the token.
            mode: Permissions of the file, whatever the umask.
        """
        self._path = path
        self._user = user
        self._tokens = tokens
        self._revoked = revoked
        self._clock = clock
        self._lifespan = lifespan_seconds
        self._role = role
        self._mode = mode

    def renew(self) -> bool:
        """Write a new token if the present one is missing, not good or half over; returns whether it was.

        Raises:
            UnavailableError: it can't be written.
        """
        if self._is_good():
            return False
        token, _ = self._tokens.sign(self._user, self._role, self._lifespan)
        try:
            write_atomically(self._path, token + "\n", mode=self._mode, exact=True)
        except OSError as error:
            raise UnavailableError(f"{self._path} can't be written: {error.strerror}") from error
        return True

    async def keep_renewed(self) -> None:
        """Look every minute, more often where tokens live for minutes only, until cancelled."""
        await _keep_renewed(self.renew, "token", self._path, self._lifespan)

    def _is_good(self) -> bool:
        try:
            status = self._path.lstat()
            if stat.S_IMODE(status.st_mode) != self._mode or status.st_uid != os.geteuid():
                return False
            identity = self._tokens.verify(self._path.read_text(encoding="ascii").strip())
        except (OSError, ValueError, UnauthenticatedError):
            return False
        half = (identity.issued + identity.expires) / 2
        same = (identity.user, identity.role) == (self._user, self._role)
        return self._clock.time() < half and same and not self._revoked.contains(identity)


async def _keep_renewed(renew: Callable[[], bool], what: str, path: Path, lifespan_seconds: float) -> None:
    log = structlog.get_logger(__name__)
    while True:
        try:
            if renew():
                log.info(f"{what} renewed", path=str(path))
        except UnavailableError as error:
            log.error(f"{what} not renewed", error=str(error))
        await asyncio.sleep(min(_LOOK_SECONDS, lifespan_seconds / 4))


VIEWER_TOKEN = "token"
VIEWER_AUTHORITY = "ca.pem"
VIEWER = "malletrain-dashboard"
"""User of the token."""
READABLE = 0o640
_FOLDER = 0o750


class ViewerFolder:
    """Keeps a viewer's token, and the certificate by which callers know the services, in a folder."""

    def __init__(self, folder: Path, token: TokenFile, authorities: Sequence[Path], lifespan_seconds: float) -> None:
        """Nothing happens before `keep_renewed`.

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

    async def keep_renewed(self) -> None:
        """Look every minute, more often where tokens live for minutes only, until cancelled."""
        await _keep_renewed(self.renew, "viewer's token or certificate", self._folder, self._lifespan)

    def _copy_authority(self) -> bool:
        wanted = "".join(path.read_text(encoding="ascii") for path in self._authorities)
        path = self._folder / VIEWER_AUTHORITY
        if path.is_file() and path.read_text(encoding="ascii") == wanted:
            return False
        write_atomically(path, wanted, mode=READABLE, exact=True)
        return True
