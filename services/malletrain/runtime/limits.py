"""What a service grants those who call it, so that none of them can take it all."""

from __future__ import annotations

import resource

from pydantic import BaseModel, ConfigDict, Field

_MANY_FILES = 65_536


class ServerLimits(BaseModel):
    """Limits of each service's server: section `[limits]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_request_bytes: int = Field(
        default=16 * 1024 * 1024, ge=64 * 1024, le=1024**3, description="Largest request message, in bytes."
    )
    max_streams_per_connection: int = Field(
        default=256, ge=1, le=100_000, description="Calls under way on one connection; further ones wait."
    )
    max_calls: int = Field(
        default=4096, ge=16, le=1_000_000, description="Calls under way in all; further ones get RESOURCE_EXHAUSTED."
    )
    idle_connection_seconds: float = Field(
        default=300.0, ge=1, le=86_400, description="A connection without calls is closed after so long."
    )


def raise_file_limit() -> None:
    """Allow this process as many open files as the machine lets it: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
