"""gRPC credentials of certificate files, for servers and channels, both blocking and of an event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import grpc

from malletrain.tls.files import (
    CertificateFileError,
    file_stamp,
    read_certificates,
    read_private_key,
)
from malletrain.tls.names import PeerJob, PeerNode, job_of, name_of, node_of, role_of
from malletrain.tls.sources import CertificateSource, source_of

_NAMES = "x509_subject_alternative_name"

_log = logging.getLogger(__name__)

ChannelOptions = tuple[tuple[str, str], ...]


def server_credentials(certificate: Path | CertificateSource) -> grpc.ServerCredentials:
    """Credentials of a server, which clients without a certificate of our CA can't reach.

    Each handshake uses what the file holds by then. Connections that are open go on as they are. A file that can't be
    read leaves the credentials as they were, and a warning in the log.

    Args:
        certificate: Certificate file, or another source.

    Raises:
        CertificateFileError: it can't be used now.
    """

    source = source_of(certificate)

    def read() -> grpc.ServerCertificateConfiguration:
        current = source.read()
        return grpc.ssl_server_certificate_configuration(
            [(current.private_key, current.certificate)], current.authority
        )

    return _dynamic(_Watched(source.stamp, read), clients_have_certificates=True)


def public_server_credentials(certificate: Path | CertificateSource, key: Path | None = None) -> grpc.ServerCredentials:
    """Credentials of a server for clients without certificates, who show tokens. Read anew as `server_credentials`.

    gRPC for Python has no servers that ask for a client's certificate and do without: it is required, or not asked for.

    Args:
        certificate: Certificate file, or another source; or, with `key`, a file with the server's certificate and those
            that lead to its CA.
        key: File with the private key; None: it is in the certificate file.

    Raises:
        CertificateFileError: they can't be used now.
    """
    if key is not None and isinstance(certificate, Path):
        return _dynamic(_watched_files(certificate, key), clients_have_certificates=False)
    source = source_of(certificate)

    def read() -> grpc.ServerCertificateConfiguration:
        current = source.read()
        return grpc.ssl_server_certificate_configuration([(current.private_key, current.certificate)])

    return _dynamic(_Watched(source.stamp, read), clients_have_certificates=False)


def _watched_files(certificate: Path, key: Path) -> _Watched:
    def read() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(read_private_key(key), read_certificates(certificate))])

    return _Watched(lambda: (file_stamp(certificate), file_stamp(key)), read)


def channel_credentials(certificate: Path | CertificateSource) -> grpc.ChannelCredentials:
    """Credentials of a channel: what the file holds now.

    A channel that outlives the certificate must be made anew, as those of `malletrain.tls.channels` are: it shows the
    old one at every new connection.

    Args:
        certificate: Certificate file, or another source.

    Raises:
        CertificateFileError: it can't be used.
    """
    current = source_of(certificate).read()
    return grpc.ssl_channel_credentials(current.authority, current.private_key, current.certificate)


def authority_credentials(path: Path) -> grpc.ChannelCredentials:
    """Credentials of a channel that verifies the server and shows no certificate.

    Args:
        path: Certificates of CAs.

    Raises:
        CertificateFileError: it can't be used.
    """
    return grpc.ssl_channel_credentials(read_certificates(path))


def peer_options(role: str) -> ChannelOptions:
    """Channel options by which only a server with a certificate of this role is accepted, wherever it listens."""
    return name_options(name_of(role))


def name_options(name: str) -> ChannelOptions:
    """Channel options by which only a server with this name in its certificate is accepted, wherever it listens."""
    return (("grpc.ssl_target_name_override", name),)


def has_tls(auth_context: Mapping[str, Iterable[bytes]]) -> bool:
    """Whether a call comes over TLS.

    Args:
        auth_context: What `auth_context()` of a call's context returns.
    """
    return b"ssl" in auth_context.get("transport_security_type", ())


def peer_roles(auth_context: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """Roles in the verified certificate of a peer; empty if it has shown none.

    Args:
        auth_context: What `auth_context()` of a call's context returns.
    """
    return frozenset(role for role in map(role_of, _names(auth_context)) if role is not None)


def peer_job(auth_context: Mapping[str, Iterable[bytes]]) -> PeerJob | None:
    """The job in the verified certificate of a supervisor; None if its certificate is that of all supervisors.

    Args:
        auth_context: What `auth_context()` of a call's context returns.
    """
    return next((job for job in map(job_of, _names(auth_context)) if job is not None), None)


def peer_node(auth_context: Mapping[str, Iterable[bytes]]) -> PeerNode | None:
    """The node in the verified certificate of an agent; None if it names none, as that which 0.1's agents shared.

    Args:
        auth_context: What `auth_context()` of a call's context returns.
    """
    return node_of(_names(auth_context))


def peer_certificate(auth_context: Mapping[str, Iterable[bytes]]) -> bytes:
    """The verified certificate of a peer in PEM; empty if it has shown none.

    Args:
        auth_context: What `auth_context()` of a call's context returns.
    """
    return next(iter(auth_context.get("x509_pem_cert", ())), b"")


def _names(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    return [name.decode("ascii", "replace") for name in auth_context.get(_NAMES, ())]


def _dynamic(source: _Watched, *, clients_have_certificates: bool) -> grpc.ServerCredentials:
    return grpc.dynamic_ssl_server_credentials(
        source.current(),
        source.changed,  # type: ignore[arg-type]  # may return None, which types-grpcio does not know
        require_client_authentication=clients_have_certificates,
    )


class _Watched:
    """What a server shows, read anew when it has been replaced. gRPC asks one thread at a time."""

    def __init__(self, stamp: Callable[[], object], read: Callable[[], grpc.ServerCertificateConfiguration]) -> None:
        self._stamp = stamp
        self._read = read
        self._seen: object = None

    def current(self) -> grpc.ServerCertificateConfiguration:
        """What the files hold now.

        Raises:
            CertificateFileError: they can't be used.
        """
        # First the stamp, then the content: what is replaced in between is read once more.
        seen = self._stamp()
        configuration = self._read()
        self._seen = seen
        return configuration

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What the files hold now; None if that is what they held before, or if they can't be used."""
        try:
            return None if self._stamp() == self._seen else self.current()
        except CertificateFileError as error:
            _log.warning("the certificate stays as it was: %s", error)
            return None
