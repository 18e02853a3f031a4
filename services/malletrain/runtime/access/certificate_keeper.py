"""Keeps certificates renewed while a service runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from malletrain.runtime.access.pki import certificate_path, ensure_certificate
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError

LIFESPAN_SECONDS = 86_400.0
"""Lifespan of a certificate, half of which it is used for at most by those who renew it."""
_LOOK_SECONDS = 600.0


class CertificateKeeper:
    """The certificates of some roles."""

    def __init__(
        self, state_dir: Path, roles: tuple[str, ...], clock: Clock, lifespan_seconds: float = LIFESPAN_SECONDS
    ) -> None:
        """Touch nothing yet.

        Args:
            state_dir: State folder of the installation.
            roles: Whom the certificates are for.
            clock: Wall clock.
            lifespan_seconds: Lifespan of a new certificate.
        """
        self._state_dir = state_dir.resolve()
        self._roles = roles
        self._clock = clock
        self._lifespan = lifespan_seconds

    def path(self, role: str) -> Path:
        """Path of the certificate file of a role."""
        return certificate_path(self._state_dir, role)

    def ensure(self) -> None:
        """Make the certificates that are missing, and renew those of which half is over.

        Raises:
            InvalidInputError: they can't be made, or are open to others.
        """
        for role in self._roles:
            ensure_certificate(self._state_dir, role, self._clock, self._lifespan)

    async def keep(self) -> None:
        """Look every ten minutes, more often where certificates live for minutes only, until cancelled."""
        log = structlog.get_logger(__name__)
        while True:
            try:
                await asyncio.to_thread(self.ensure)
            except InvalidInputError as error:
                log.error("certificates not renewed", roles=self._roles, error=str(error))
            await asyncio.sleep(min(_LOOK_SECONDS, self._lifespan / 8))
