"""What is in certificates, without their keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from malletrain.runtime.access.keys import keys_folder
from malletrain.runtime.access.pki import AUTHORITY_CERTIFICATE, certificate_path
from malletrain.runtime.errors import InvalidInputError
from malletrain.tls.files import CertificateFileError, read_certificate_file, read_certificates
from malletrain.tls.names import ROLES

AUTHORITY = "authority"
"""Stands for a role with the CA's own certificate."""
SITE = "site"
"""Stands for a role with the site's own certificate."""


@dataclass(frozen=True)
class CertificateDescription:
    """What everybody may know of a certificate.

    Attributes:
        role: The role that it is for, `authority` or `site`.
        serial: Serial number in hexadecimal digits.
        not_before: Start of its lifespan, in seconds since the epoch.
        not_after: End of its lifespan, in seconds since the epoch.
        fingerprint: SHA-256 of the certificate, in hexadecimal digits.
        path: File that it is in.
    """

    role: str
    serial: str
    not_before: float
    not_after: float
    fingerprint: str
    path: Path


def certificates_of(state_dir: Path, site: Path | None = None) -> Iterator[CertificateDescription]:
    """The certificates that there are: the CA's, those of roles, and the site's.

    Args:
        state_dir: State folder of the installation.
        site: File with the site's own certificate, if there is one.

    Raises:
        InvalidInputError: a file can't be read or used.
    """
    authority = keys_folder(state_dir) / AUTHORITY_CERTIFICATE
    if _exists(authority):
        yield _describe(AUTHORITY, authority, _read(authority))
    for role in ROLES:
        path = certificate_path(state_dir, role)
        if _exists(path):
            yield _describe(role, path, _read_leaf(path))
    if site is not None:
        yield _describe(SITE, site, _read(site))


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InvalidInputError(str(path), f"a file that this account can read ({error.strerror})") from error
    return True


def _read(path: Path) -> bytes:
    try:
        return read_certificates(path)
    except CertificateFileError as error:
        raise InvalidInputError(str(path), f"a usable certificate ({error})") from error


def _read_leaf(path: Path) -> bytes:
    try:
        return read_certificate_file(path).certificate
    except CertificateFileError as error:
        raise InvalidInputError(str(path), f"a usable certificate ({error})") from error


def _describe(role: str, path: Path, pem: bytes) -> CertificateDescription:
    try:
        certificate = x509.load_pem_x509_certificates(pem)[0]
    except ValueError as error:
        raise InvalidInputError(str(path), "a usable certificate") from error
    return CertificateDescription(
        role,
        f"{certificate.serial_number:x}",
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
        certificate.fingerprint(hashes.SHA256()).hex(),
        path,
    )
