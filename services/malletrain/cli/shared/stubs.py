"""The services as the command calls them: with its own settings, and errors that people can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from malletrain.caller.credentials import caller_credential
from malletrain.caller.stubs import (
    DEADLINE_SECONDS,
    SHOWN_NAMES,
    ServiceCallError,
    ServiceStubs,
    explain,
    is_unverified,
)
from malletrain.cli.shared.settings import load

__all__ = [
    "DEADLINE_SECONDS",
    "SHOWN_NAMES",
    "ServiceCallError",
    "ServiceStubs",
    "connect",
    "explain",
    "is_unverified",
]


@contextmanager
def connect() -> Iterator[ServiceStubs]:
    """Stubs of the configured services. Errors of calls in the block are raised as ServiceCallError."""
    settings = load()
    stubs = ServiceStubs(settings, caller_credential(settings))
    try:
        yield stubs
    except grpc.RpcError as error:
        raise explain(error) from error
    finally:
        stubs.close()
