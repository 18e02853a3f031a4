"""Keeps the certificates of a process good while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from malletrain.runtime.access.pki import certificate_path, ensure_certificate, publish_authority
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError

LIFESPAN_SECONDS = 86_400.0
"""Lifespan of a certificate, unless the settings say otherwise."""
_LOOK_SECONDS = 60.0


class CertificateRenewal:
    """Makes certificates of the installation's CA, and renews each once half of its lifespan is over."""

    def __init__(
        self,
        state_dir: Path,
        roles: Sequence[str],
        clock: Clock,
        lifespan_seconds: float = LIFESPAN_SECONDS,
        published: Path | None = None,
    ) -> None:
        """Nothing happens before `keep_renewed`.

        Args:
            state_dir: State folder of the installation.
            roles: Whose certificates; may be none, for the CA's alone.
            clock: Wall clock.
            lifespan_seconds: Lifespan of each new certificate.
            published: Where the CA's certificate is written for everybody to read; None: nowhere.
        """
        self._state_dir = state_dir.resolve()
        self._roles = tuple(roles)
        self._clock = clock
        self._lifespan = lifespan_seconds
        self._published = published

    def path(self, role: str) -> Path:
        """Path of the certificate file of a role."""
        return certificate_path(self._state_dir, role)

    def renew(self) -> None:
        """Make what is missing, and renew what is due.

        Raises:
            InvalidInputError: files can't be made or used, or are open to others.
        """
        for role in self._roles:
            ensure_certificate(self._state_dir, role, self._clock, self._lifespan)
        if self._published is not None:
            publish_authority(self._state_dir, self._published, self._clock)

    async def keep_renewed(self) -> None:
        """Look every minute, more often where certificates live for minutes only, until cancelled."""
        log = structlog.get_logger(__name__)
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, self._lifespan / 8))
            try:
                await asyncio.to_thread(self.renew)
            except InvalidInputError as error:
                log.error("certificates not renewed", roles=self._roles, error=str(error))
