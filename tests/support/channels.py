"""How tests reach servers, and how what is tested knows the stand-ins of its peers."""

from __future__ import annotations

import functools
import tempfile
import time
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from malletrain.runtime.access import issuing
from malletrain.runtime.access.credentials import Credential, ServiceCredential, showing, showing_blocking
from malletrain.runtime.config import Settings, TlsSettings
from malletrain.runtime.peer import Peer
from malletrain.tls.credentials import public_server_credentials
from malletrain.tls.names import SERVICE_ROLES, name_of
from tests.support.access import TESTED

SettingsT = TypeVar("SettingsT", bound=Settings)


def plain_channel(address: str, credential: Credential | ServiceCredential | None) -> grpc.aio.Channel:
    """A channel without TLS, to a server of this test that has none."""
    channel = grpc.aio.insecure_channel(address)
    return channel if credential is None else showing(channel, _shown(credential))


def plain_blocking_channel(address: str, credential: Credential | ServiceCredential | None) -> grpc.Channel:
    """The same for tests without an event loop."""
    channel = grpc.insecure_channel(address)
    return channel if credential is None else showing_blocking(channel, _shown(credential))


def _shown(credential: Credential | ServiceCredential) -> Credential:
    return credential.towards(TESTED) if isinstance(credential, ServiceCredential) else credential


@functools.cache
def _certificate() -> Path:
    """A certificate of a CA of this test run, good for every service, with its key and the CA's."""
    folder = Path(tempfile.mkdtemp(prefix="malletrain-test-ca-"))
    key, now = issuing.new_key(), time.time()
    authority = issuing.Authority(key, issuing.authority_certificate(key, now))
    names = [name_of(role) for role in SERVICE_ROLES]
    parts = issuing.issue(authority, "job_manager", now, issuing.AUTHORITY_LIFESPAN_SECONDS, names)
    path = folder / "services.pem"
    path.write_bytes(parts.private_key + parts.certificate + parts.authority)
    path.chmod(0o600)
    (folder / "ca.pem").write_bytes(parts.authority)
    return path


def stand_in_credentials() -> grpc.ServerCredentials:
    """Credentials of a server that stands in for any service."""
    return public_server_credentials(_certificate())


def stand_in_authority() -> Path:
    """Certificate by which stand-ins are known."""
    return _certificate().with_name("ca.pem")


def knowing_stand_ins(settings: SettingsT) -> SettingsT:
    """Settings by which what is tested knows stand-ins for its peers."""
    return settings.model_copy(update={"tls": TlsSettings(authority_file=stand_in_authority())})


def stand_in(service: str, address: str) -> Peer:
    """A stand-in for a service, for those who call it."""
    return Peer(service, address, stand_in_authority(), service)
