"""The file with all that a process needs for TLS: its private key, its certificate, and that of the CA."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

_MOST_BYTES = 64 * 1024
_GROUP_AND_OTHERS = 0o077
# Opening a pipe must not wait for a writer.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_PART = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----\r?\n[A-Za-z0-9+/=\r\n]+-----END \1-----\r?\n?")
_PRIVATE_KEYS = frozenset({b"PRIVATE KEY", b"EC PRIVATE KEY", b"RSA PRIVATE KEY"})
_CERTIFICATE = b"CERTIFICATE"


class CertificateFileError(Exception):
    """A file of certificates that can't be used. The message says nothing of its content."""


@dataclass(frozen=True)
class CertificateFile:
    """The parts of a file, each in PEM.

    Attributes:
        private_key: The key of the certificate; a secret.
        certificate: What is shown to peers.
        authority: The CA's certificate, by which peers are verified.
    """

    private_key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes


def read_certificate_file(path: Path) -> CertificateFile:
    """Read a file that is replaced while it is in use: the parts belong together.

    Raises:
        CertificateFileError: it is missing, can't be read, can be read by others than its owner, is larger than 64 KiB,
            or does not have these three parts.
    """
    try:
        content = _content(path)
    except OSError as error:
        raise CertificateFileError(f"{path}: expected a file with a certificate ({error.strerror})") from error
    return parse_certificate_file(content, path)


def parse_certificate_file(content: bytes, path: Path) -> CertificateFile:
    """The parts of a file's content.

    Args:
        content: Private key, certificate and CA's certificate, in this order and in PEM.
        path: The file, for errors.

    Raises:
        CertificateFileError: it is larger than 64 KiB, or does not have these three parts.
    """
    if len(content) > _MOST_BYTES:
        raise CertificateFileError(f"{path}: expected at most {_MOST_BYTES} bytes")
    parts = [(found[1], found[0]) for found in _PART.finditer(content)]
    kinds = [kind for kind, _ in parts]
    if len(parts) != 3 or kinds[0] not in _PRIVATE_KEYS or kinds[1:] != [_CERTIFICATE] * 2 or _PART.sub(b"", content):
        raise CertificateFileError(f"{path}: expected a private key, a certificate and the CA's certificate, in PEM")
    return CertificateFile(*(part for _, part in parts))


def _content(path: Path) -> bytes:
    descriptor = os.open(path, _READ)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise CertificateFileError(f"{path}: expected a plain file")
        if found.st_mode & _GROUP_AND_OTHERS:
            mode = stat.S_IMODE(found.st_mode)
            raise CertificateFileError(f"{path}: expected a file that only its owner can read, got mode {mode:o}")
        return file.read(_MOST_BYTES + 1)
