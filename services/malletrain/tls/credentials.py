"""gRPC credentials of a certificate file, for servers and channels, both blocking and of an event loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import grpc

from malletrain.tls.files import CertificateFile, CertificateFileError, read_certificate_file
from malletrain.tls.names import name_of, role_of

_NAMES = "x509_subject_alternative_name"

_log = logging.getLogger(__name__)


def server_credentials(path: Path) -> grpc.ServerCredentials:
    """Credentials of a server, which clients without a certificate of our CA can't reach.

    Each handshake uses what the file holds by then. Connections that are open go on as they are. A file that can't be
    read leaves the credentials as they were, and a warning in the log.

    Args:
        path: Certificate file.

    Raises:
        CertificateFileError: it can't be used now.
    """
    source = _CertificateSource(path)
    return grpc.dynamic_ssl_server_credentials(
        source.current(),
        source.changed,  # type: ignore[arg-type]  # may return None, which types-grpcio does not know
        require_client_authentication=True,
    )


def channel_credentials(path: Path) -> grpc.ChannelCredentials:
    """Credentials of a channel: what the file holds now.

    A channel that outlives the certificate must be made anew: it shows the old one at every new connection.

    Args:
        path: Certificate file.

    Raises:
        CertificateFileError: it can't be used.
    """
    found = read_certificate_file(path)
    return grpc.ssl_channel_credentials(found.authority, found.private_key, found.certificate)


def peer_options(role: str) -> tuple[tuple[str, str], ...]:
    """Channel options by which only a server with a certificate of this role is accepted, wherever it listens."""
    return (("grpc.ssl_target_name_override", name_of(role)),)


def peer_roles(auth_context: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """Roles in the verified certificate of a peer; empty if it has shown none.

    Args:
        auth_context: What `auth_context()` of a call's context returns.
    """
    names = (name.decode("ascii", "replace") for name in auth_context.get(_NAMES, ()))
    return frozenset(role for role in map(role_of, names) if role is not None)


class _CertificateSource:
    """What a server shows, read anew when its file has been replaced. gRPC asks one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: object = None

    def current(self) -> grpc.ServerCertificateConfiguration:
        """What the file holds now.

        Raises:
            CertificateFileError: it can't be used.
        """
        # First the stamp, then the content: a file that is replaced in between is read once more.
        seen = _stamp(self._path)
        configuration = _configuration(read_certificate_file(self._path))
        self._seen = seen
        return configuration

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What the file holds now; None if that is what it held before, or if it can't be used."""
        try:
            return None if _stamp(self._path) == self._seen else self.current()
        except CertificateFileError as error:
            _log.warning("the certificate stays as it was: %s", error)
            return None


def _stamp(path: Path) -> object:
    """What differs once a file has been replaced.

    Raises:
        CertificateFileError: there is no such file.
    """
    try:
        found = os.stat(path)  # noqa: PTH116 - called at every handshake
    except OSError as error:
        raise CertificateFileError(f"{path}: expected a file with a certificate ({error.strerror})") from error
    return found.st_ino, found.st_mtime_ns, found.st_size


def _configuration(found: CertificateFile) -> grpc.ServerCertificateConfiguration:
    pair = (found.private_key, found.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=found.authority)
