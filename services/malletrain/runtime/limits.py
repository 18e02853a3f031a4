"""What a service grants those who call it, so that none of them can take it all."""

from __future__ import annotations

import resource

from pydantic import Field

from malletrain.runtime.frozen_settings import FrozenSettings

_MANY_FILES = 65_536
_MAX_REPORT_BYTES = 1024 * 1024


class ServerLimits(FrozenSettings):
    """Limits of each service's server: section `[limits]`."""

    max_request_bytes: int = Field(
        default=16 * 1024 * 1024, ge=64 * 1024, le=1024**3, description="Largest request message, in bytes."
    )
    max_streams_per_connection: int = Field(
        default=256, ge=1, le=100_000, description="Calls under way on one connection; further ones wait."
    )
    max_calls: int = Field(
        default=4096,
        ge=16,
        le=1_000_000,
        description="Calls with a token under way in all; further ones get RESOURCE_EXHAUSTED, but for a caller's "
        "first 16.",
    )
    max_calls_per_caller: int = Field(
        default=512,
        ge=16,
        le=1_000_000,
        description="Calls under way of one user, or of one job; services are not bound by it.",
    )
    max_calls_without_token: int = Field(
        default=32,
        ge=4,
        le=1_000_000,
        description="Calls under way without a token, such as health checks, of one account of this machine, or of one "
        "other machine.",
    )
    max_connections_per_peer: int = Field(
        default=1024,
        ge=16,
        le=1_000_000,
        description="Connections of one account of this machine, except the services' own and root, or of one other "
        "machine; the newest of more are closed. At the port for agents, calls of these, too.",
    )
    first_message_seconds: float = Field(
        default=10.0, ge=0.1, le=3600, description="A call whose message has not arrived after so long is ended."
    )
    idle_connection_seconds: float = Field(
        default=300.0, ge=1, le=86_400, description="A connection without calls is closed after so long."
    )

    def for_reports(self) -> ServerLimits:
        """The limits with small requests only, for Monitor, whose reporters send nothing large."""
        return self.model_copy(update={"max_request_bytes": min(self.max_request_bytes, _MAX_REPORT_BYTES)})


def raise_file_limit() -> None:
    """Allow this process as many open files as the machine lets it: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
