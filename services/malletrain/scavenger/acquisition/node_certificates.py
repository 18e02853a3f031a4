"""Certificates of the agents of nodes: each is for one node, and for the placeholder that it was made for."""

from __future__ import annotations

from pathlib import Path

import structlog
from cryptography import x509

from malletrain.runtime.access.pki import certificate_path, issue_to_node
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.base import SourceError
from malletrain.tls.files import CertificateFileError, read_certificate_file

_START_SECONDS = 300.0
"""From the start of a placeholder until its agent has reported, at the most."""
LOOK_SECONDS = 60.0
_MILLISECONDS = 1000


class NodeCertificates:
    """Issues certificates of nodes by the installation's CA. Safe in any thread."""

    def __init__(self, state_dir: Path, clock: Clock, lifespan_seconds: float, pending_seconds: float) -> None:
        """
        Args:
            state_dir: State folder of the installation.
            clock: Wall clock.
            lifespan_seconds: Lifespan of each.
            pending_seconds: How long a placeholder may wait for its start. The first certificate outlives that.
        """
        self._state_dir = state_dir.resolve()
        self._clock = clock
        self._lifespan = lifespan_seconds
        self._first_lifespan = max(lifespan_seconds, pending_seconds + _START_SECONDS)
        self._newest = 0
        self._shared = certificate_path(self._state_dir, "agent")

    def issue(self, node: str) -> str:
        """A certificate for the agent of a new placeholder on a node, whose number is higher than all before.

        Returns:
            Private key, certificate and CA's certificate in PEM. A secret.

        Raises:
            SourceError: the CA can't be used.
        """
        number = max(self._newest + 1, round(self._clock.time() * _MILLISECONDS))
        self._newest = number
        return self._issue(node, number, self._first_lifespan)

    def renew(self, node: str, placeholder: int | None) -> str:
        """Another one for the same node and placeholder. Otherwise as `issue`."""
        return self._issue(node, placeholder, self._lifespan)

    def note_number(self, placeholder: int) -> None:
        """A placeholder with this number has been seen: the next one has a higher number."""
        self._newest = max(self._newest, placeholder)

    @property
    def look_seconds(self) -> float:
        """How often to look whether certificates are due."""
        return min(LOOK_SECONDS, self._lifespan / 8)

    def is_due(self, renew_at: float) -> bool:
        """Whether a certificate is to be renewed.

        Args:
            renew_at: When half of its lifespan is over, in seconds since the epoch.
        """
        return self._clock.time() >= renew_at

    @property
    def accepts_shared(self) -> bool:
        """Whether there is the certificate that all agents of 0.1 share: then those that have it are let in."""
        return self._shared.exists()

    def expire_shared(self) -> bool:
        """Delete that certificate if it has expired or can't be used. It is not renewed any more.

        Returns:
            Whether it was deleted.

        Raises:
            OSError: it can't be deleted.
        """
        if not self.accepts_shared:
            return False
        try:
            certificate = x509.load_pem_x509_certificate(read_certificate_file(self._shared).certificate)
            expired = self._clock.time() >= certificate.not_valid_after_utc.timestamp()
        except (CertificateFileError, ValueError):
            expired = True
        if expired:
            self._shared.unlink(missing_ok=True)
            structlog.get_logger(__name__).info("the certificate that agents of 0.1 share is deleted")
        return expired

    def _issue(self, node: str, placeholder: int | None, lifespan: float) -> str:
        try:
            return issue_to_node(self._state_dir, node, placeholder, self._clock, lifespan)
        except InvalidInputError as error:
            raise SourceError(f"no certificate can be made for the agent of {node}: {error}") from error
