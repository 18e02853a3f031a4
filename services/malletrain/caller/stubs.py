"""gRPC stubs of the services for their callers: a blocking channel to each, opened when it is first used."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from malletrain.caller.settings import InstallationView
from malletrain.common.file_locks import is_locked
from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.access.identity import PermissionDeniedError, UnauthenticatedError
from malletrain.runtime.channel import DEADLINE_SECONDS, open_blocking_channel, service_of
from malletrain.runtime.errors import (
    InvalidInputError,
    LimitExceededError,
    MalleTrainError,
    NotFoundError,
    PreconditionError,
    UnavailableError,
)
from malletrain.runtime.settings_file import CONFIG_FILE, SERVICES, UP_LOCK

if TYPE_CHECKING:
    from malletrain.v1 import (
        access_pb2_grpc,
        allocator_pb2_grpc,
        job_manager_pb2_grpc,
        monitor_pb2_grpc,
        profiler_pb2_grpc,
        scavenger_pb2_grpc,
    )


class ServiceCallError(MalleTrainError):
    """A call to a service has failed.

    Attributes:
        wrong_use: Whether the request was invalid.
    """

    def __init__(self, message: str, wrong_use: bool) -> None:
        super().__init__(message)
        self.wrong_use = wrong_use


__all__ = ["DEADLINE_SECONDS", "SHOWN_NAMES", "ServiceCallError", "ServiceStubs", "explain", "is_unverified"]


SHOWN_NAMES = {
    "scavenger": "Scavenger",
    "allocator": "Allocator",
    "job_manager": "JobManager",
    "monitor": "Monitor",
    "profiler": "Profiler",
}
"""What people call the services."""
_UNVERIFIED = (
    "CERTIFICATE_VERIFY_FAILED",
    "is not in peer certificate",
    "Hostname Verification Check failed",
    "WRONG_VERSION_NUMBER",
)
"""What gRPC says of a server that does not have the expected certificate, or none."""


class ServiceStubs:
    """Stubs of all services. A channel is opened, and a stub imported, when its service is first used.

    Attributes:
        credential: What is shown to the services.
        settings: Where they are.
    """

    def __init__(self, settings: InstallationView, credential: Credential) -> None:
        self.credential = credential
        self.settings = settings
        self._channels: dict[str, grpc.Channel] = {}

    def _channel(self, service: str) -> grpc.Channel:
        if service not in self._channels:
            peer = self.settings.peer(service)
            if peer.authority_file == self.settings.own_authority_file and _is_missing(peer.authority_file):
                raise ServiceCallError(
                    f"no services have been started here yet: no {peer.authority_file}; {_about_up(self.settings)} "
                    f"({in_words(self.settings)})",
                    wrong_use=False,
                )
            self._channels[service] = open_blocking_channel(peer, self.credential)
        return self._channels[service]

    if TYPE_CHECKING:
        scavenger: scavenger_pb2_grpc.ScavengerServiceStub
        allocator: allocator_pb2_grpc.AllocatorServiceStub
        job_manager: job_manager_pb2_grpc.JobManagerServiceStub
        monitor: monitor_pb2_grpc.MonitorServiceStub
        profiler: profiler_pb2_grpc.ProfilerServiceStub
        access: access_pb2_grpc.AccessServiceStub
    else:

        def __getattr__(self, name: str) -> Any:
            """The stub of a service, imported when it is first used; AccessService is in JobManager's process."""
            if name not in (*SERVICES, "access"):
                raise AttributeError(name)
            stub = f"{name.title().replace('_', '')}ServiceStub"
            channel = self._channel("job_manager" if name == "access" else name)
            return getattr(import_module(f"malletrain.v1.{name}_pb2_grpc"), stub)(channel)

    def close(self) -> None:
        """Close every channel."""
        for channel in self._channels.values():
            channel.close()


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        pass  # whoever reads it says why that is not possible
    return False


def in_words(settings: InstallationView) -> str:
    """Which services are called: the folder of their state, and the settings that say so."""
    source = settings.source
    by = f"settings of {source.absolute()}" if source else f"no settings file: {Path.cwd() / CONFIG_FILE} is not there"
    return f"state folder {settings.state_dir}, {by}"


def _about_up(settings: InstallationView | None) -> str:
    """What to do where a service is not there: `malletrain up` may be starting it."""
    if settings is not None and is_locked(settings.state_dir / UP_LOCK):
        return "`malletrain up` runs here and has not started it yet: `malletrain health --seconds 60` waits for it"
    return "is `malletrain up` running?"


def is_unverified(error: grpc.RpcError) -> bool:
    """Whether a call failed because what answers is not the service, or is not known by the certificates here."""
    details = error.details() or ""
    return error.code() == grpc.StatusCode.UNAVAILABLE and any(sign in details for sign in _UNVERIFIED)


def explain(error: grpc.RpcError, settings: InstallationView | None = None) -> ServiceCallError:
    """Describe a failed call for users.

    Args:
        error: How it failed.
        settings: By which the services were called, for errors which mean that others were meant; None: unsaid.
    """
    ending = f" ({in_words(settings)})" if settings else ""
    code, details = error.code(), error.details() or ""
    service = SHOWN_NAMES.get(service_of(error), "a service")
    if is_unverified(error):
        return ServiceCallError(
            f"what answers is not {service}, or is of another CA: see tls.authority_file ({details}){ending}",
            wrong_use=False,
        )
    if code == grpc.StatusCode.UNAVAILABLE:
        hint = _about_up(settings)
        return ServiceCallError(f"{service} does not answer; {hint} ({details}){ending}", wrong_use=False)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ServiceCallError(f"{service} did not answer in time; does `malletrain health` say so?", wrong_use=False)
    if code == grpc.StatusCode.UNAUTHENTICATED:
        return ServiceCallError(
            f"the services do not know you: {details}. The account that runs them needs no token{ending}",
            wrong_use=False,
        )
    if code == grpc.StatusCode.PERMISSION_DENIED:
        return ServiceCallError(f"not permitted: {details}", wrong_use=False)
    return ServiceCallError(details or code.name, wrong_use=code == grpc.StatusCode.INVALID_ARGUMENT)


_KINDS: dict[grpc.StatusCode, type[MalleTrainError]] = {
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitExceededError,
}
_INPUT = re.compile(r"(?:specs\[\d+\]\.)?(?P<field>[^:]{1,256}): expected (?P<expected>.*)", re.DOTALL)


def exception_of(error: grpc.RpcError, settings: InstallationView | None = None) -> MalleTrainError:
    """The error of a call as an exception of its kind; of input it names the field.

    Args:
        error: How the call failed.
        settings: By which the services were called, for errors which mean that others were meant; None: unsaid.
    """
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT and (match := _INPUT.fullmatch(details)) is not None:
        return InvalidInputError(match["field"], match["expected"])
    explained = explain(error, settings)
    kind = _KINDS.get(code)
    return explained if kind is None else kind(str(explained))
