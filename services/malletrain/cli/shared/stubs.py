"""The services as the command calls them: with its own settings, and errors that people can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from malletrain.caller.credentials import caller_credential
from malletrain.caller.settings import caller_settings
from malletrain.caller.stubs import (
    DEADLINE_SECONDS,
    SHOWN_NAMES,
    ServiceCallError,
    ServiceStubs,
    explain,
    is_unverified,
)
from malletrain.cli.shared.configured import chosen_file

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
    settings = caller_settings(chosen_file())
    stubs = ServiceStubs(settings, caller_credential(settings))
    try:
        yield stubs
    except grpc.RpcError as error:
        raise explain(error, settings) from error
    finally:
        stubs.close()
