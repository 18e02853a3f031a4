"""A service as those who call it see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from malletrain.common.addresses import is_loopback


@dataclass(frozen=True)
class Peer:
    """Address of a service, and how it proves which one it is.

    Attributes:
        service: Its name: what a service shows to it is good for it alone.
        address: HOST:PORT.
        authority_file: Certificates of the CAs by which it is known.
        role: The role that its certificate must name; None: the host of the address.
    """

    service: str
    address: str
    authority_file: Path
    role: str | None


@dataclass(frozen=True)
class Authorities:
    """What the services of an installation are verified by. Pure.

    Attributes:
        own_file: Certificate of the installation's own CA, which the services write for everybody to read.
        site_file: Certificates of the CAs that settings name; None: they name none.
        has_site_certificate: Whether the site has given the services a certificate of its own.
        expects_host: Whether callers expect the host of the address in a service's certificate, rather than its role.
    """

    own_file: Path
    site_file: Path | None = None
    has_site_certificate: bool = False
    expects_host: bool = False

    @property
    def file(self) -> Path:
        """Certificates of the CAs by which callers know the services."""
        return self.site_file or self.own_file

    def shows_site_certificate(self, address: str) -> bool:
        """Whether a service at an address proves itself by a certificate of the site: off loopback, where there is one.

        A site's certificates are for names of hosts, so that what proves a service on loopback is always our own.
        """
        return (self.has_site_certificate or self.expects_host) and not is_loopback(address)

    def peer(self, service: str, address: str) -> Peer:
        """A service at an address."""
        if self.shows_site_certificate(address):
            return Peer(service, address, self.file, None if self.expects_host else service)
        return Peer(service, address, self.own_file if self.has_site_certificate else self.file, service)
