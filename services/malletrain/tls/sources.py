"""Where certificates come from: a file that is replaced while it is in use, or memory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Protocol

from malletrain.tls.files import (
    CertificateFile,
    CertificateFileError,
    file_stamp,
    parse_certificate_file,
    read_certificate_file,
)


class CertificateSource(Protocol):
    """Has a private key, its certificate and that of the CA. Safe in any thread."""

    def stamp(self) -> object:
        """What differs once they have been replaced.

        Raises:
            CertificateFileError: there are none.
        """

    def read(self) -> CertificateFile:
        """What there is now.

        Raises:
            CertificateFileError: it can't be used.
        """


class FileCertificate:
    """What a file holds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def stamp(self) -> object:
        """See `CertificateSource`."""
        return file_stamp(self._path)

    def read(self) -> CertificateFile:
        """See `CertificateSource`."""
        return read_certificate_file(self._path)


class RenewableCertificate:
    """One that is renewed in memory, and never written anywhere. A file from which the first one came may be replaced.

    Whichever was replaced last counts.
    """

    def __init__(self, first: Path | bytes) -> None:
        """Begin with a file, or with the content of one.

        Args:
            first: A certificate file, or private key, certificate and CA's certificate in PEM.

        Raises:
            CertificateFileError: the content can't be used.
        """
        self._file = FileCertificate(first) if isinstance(first, Path) else None
        self._renewed = None if isinstance(first, Path) else _parse(first)
        self._file_stamp: object = None

    def renew(self, content: bytes) -> None:
        """Take a new one over.

        Args:
            content: Private key, certificate and CA's certificate, in PEM.

        Raises:
            CertificateFileError: it can't be used; the present one stays.
        """
        renewed = _parse(content)
        self._file_stamp = self._stamp_of_file()
        self._renewed = renewed

    def stamp(self) -> object:
        """See `CertificateSource`."""
        renewed = self._counting()
        if renewed is not None:
            return renewed.certificate
        assert self._file is not None
        return self._file.stamp()

    def read(self) -> CertificateFile:
        """See `CertificateSource`."""
        renewed = self._counting()
        if renewed is not None:
            return renewed
        assert self._file is not None
        return self._file.read()

    def _counting(self) -> CertificateFile | None:
        """What memory holds; None if the file counts."""
        renewed = self._renewed
        if renewed is None or self._stamp_of_file() in (None, self._file_stamp):
            return renewed
        return None

    def _stamp_of_file(self) -> object:
        """None if there is no file."""
        with contextlib.suppress(CertificateFileError):
            return None if self._file is None else self._file.stamp()
        return None


def source_of(certificate: Path | CertificateSource) -> CertificateSource:
    """The source that stands for a certificate file, or the source itself."""
    return FileCertificate(certificate) if isinstance(certificate, Path) else certificate


def _parse(content: bytes) -> CertificateFile:
    return parse_certificate_file(content, Path("the agent's certificate"))
