"""The file with all that a process needs for TLS: its private key, its certificate, and that of the CA."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

_MAX_BYTES = 64 * 1024
_MAX_AUTHORITY_BYTES = 1024 * 1024
"""A machine's list of all CAs is a quarter of this."""
_GROUP_AND_OTHERS = 0o077
_GROUP_WRITE_AND_OTHERS = 0o027
# Opening a pipe must not wait for a writer.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_PART = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----\r?\n[A-Za-z0-9+/=\r\n]+-----END \1-----\r?\n?")
_PRIVATE_KEYS = frozenset({b"PRIVATE KEY", b"EC PRIVATE KEY", b"RSA PRIVATE KEY"})
_CERTIFICATE = b"CERTIFICATE"
_ANYBODY = 0


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
    return parse_certificate_file(_content(path, _GROUP_AND_OTHERS, _MAX_BYTES), path)


def parse_certificate_file(content: bytes, path: Path) -> CertificateFile:
    """The parts of a file's content.

    Args:
        content: Private key, certificate and CA's certificate, in this order and in PEM.
        path: The file, for errors.

    Raises:
        CertificateFileError: it is larger than 64 KiB, or does not have these three parts.
    """
    if len(content) > _MAX_BYTES:
        raise CertificateFileError(f"{path}: expected at most {_MAX_BYTES} bytes")
    kinds = _kinds(content)
    if len(kinds) != 3 or kinds[0] not in _PRIVATE_KEYS or kinds[1:] != [_CERTIFICATE] * 2 or _PART.sub(b"", content):
        raise CertificateFileError(f"{path}: expected a private key, a certificate and the CA's certificate, in PEM")
    return CertificateFile(*(match[0] for match in _PART.finditer(content)))


def read_certificates(path: Path) -> bytes:
    """Read a file of certificates that anybody may read: those of CAs, or one with those that lead to its CA.

    Raises:
        CertificateFileError: it is missing, can't be read, is larger than 1 MiB, or has no certificate in it.
    """
    content = _content(path, _ANYBODY, _MAX_AUTHORITY_BYTES)
    kinds = _kinds(content)
    if _CERTIFICATE not in kinds or not _PRIVATE_KEYS.isdisjoint(kinds):
        raise CertificateFileError(f"{path}: expected certificates in PEM, and no private key")
    return content


def read_private_key(path: Path) -> bytes:
    """Read a private key that is in a file of its own.

    Raises:
        CertificateFileError: it is missing, can't be read, can be read by everybody or written by its group, is larger
            than 64 KiB, or is no private key.
    """
    content = _content(path, _GROUP_WRITE_AND_OTHERS, _MAX_BYTES)
    if _PRIVATE_KEYS.isdisjoint(_kinds(content)):
        raise CertificateFileError(f"{path}: expected a private key in PEM that is not encrypted")
    return content


def file_stamp(path: Path) -> object:
    """What differs once a file has been replaced.

    Raises:
        CertificateFileError: there is no such file.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - called at every handshake and call
    except OSError as error:
        raise CertificateFileError(f"{path}: expected a file with a certificate ({error.strerror})") from error
    return status.st_ino, status.st_mtime_ns, status.st_size


def _kinds(content: bytes) -> list[bytes]:
    return [match[1] for match in _PART.finditer(content)]


def _content(path: Path, refused_bits: int, max_bytes: int) -> bytes:
    try:
        descriptor = os.open(path, _READ)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CertificateFileError(f"{path}: expected a plain file")
            if status.st_mode & refused_bits:
                mode = stat.S_IMODE(status.st_mode)
                raise CertificateFileError(f"{path}: expected a file that only its owner can read, got mode {mode:o}")
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise CertificateFileError(f"{path}: expected a file with a certificate ({error.strerror})") from error
    if len(content) > max_bytes:
        raise CertificateFileError(f"{path}: expected at most {max_bytes} bytes")
    return content
