"""A site's own CA, with certificates for hosts."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey as Key
from cryptography.x509.oid import NameOID

from malletrain.runtime.access.issuing import new_key, pem, private_pem
from malletrain.runtime.config import TlsSettings


class SiteAuthority:
    """Makes certificates for hosts, by way of an intermediate CA as large sites have it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        root, self._key = new_key(), new_key()
        self._root = _certificate("Site", root, "Site", root, None)
        self._middle = _certificate("Site TLS", self._key, "Site", root, None)
        (folder / "ca.pem").write_bytes(pem(self._root))

    def settings(self, host: str, ends: timedelta = timedelta(days=30)) -> TlsSettings:
        """Settings with a new certificate for a host's IP address; files that there are are replaced."""
        key = new_key()
        certificate = _certificate("server", key, "Site TLS", self._key, host, ends)
        files = {"tls.key": private_pem(key), "tls.pem": pem(certificate) + pem(self._middle)}
        for name, content in files.items():
            new = self._folder / f"{name}.new"
            new.touch(0o600)
            new.write_bytes(content)
            new.replace(self._folder / name)
        return TlsSettings(
            certificate_file=self._folder / "tls.pem",
            key_file=self._folder / "tls.key",
            authority_file=self._folder / "ca.pem",
        )


def _certificate(
    name: str, key: Key, issuer: str, signer: Key, host: str | None, ends: timedelta = timedelta(days=30)
) -> x509.Certificate:
    """A certificate of a host; of a CA where there is none."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
    )
    if host is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signer, hashes.SHA256())
