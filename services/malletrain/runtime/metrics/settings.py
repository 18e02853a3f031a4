"""Settings of the section `[metrics]`."""

from __future__ import annotations

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from malletrain.common.addresses import is_loopback

_SERVICES = ("scavenger", "allocator", "job_manager", "monitor", "profiler")
_WHERE = "serves metrics over HTTP, as HOST:PORT; empty: nowhere."


class MetricsSettings(BaseModel):
    """Where each service serves metrics for Prometheus."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scavenger: str = Field(default="", description=f"Address at which the Scavenger {_WHERE}")
    allocator: str = Field(default="", description=f"Address at which the Allocator {_WHERE}")
    job_manager: str = Field(default="", description=f"Address at which JobManager {_WHERE}")
    monitor: str = Field(default="", description=f"Address at which Monitor {_WHERE}")
    profiler: str = Field(default="", description=f"Address at which the Profiler {_WHERE}")
    allow_remote: bool = Field(
        default=False,
        description="Whether these addresses may be off loopback. They are not encrypted and ask nobody who they are: "
        "whoever reaches them reads figures, and identifiers and owners of jobs.",
    )
    max_jobs: int = Field(
        default=100,
        ge=0,
        le=10_000,
        description="Most jobs with metrics of their own; the others count as one, `other`.",
    )

    @pydantic.field_validator(*_SERVICES)
    @classmethod
    def _address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and (not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) <= 65535):
            raise ValueError("expected HOST:PORT, or nothing")
        return value

    @pydantic.model_validator(mode="after")
    def _loopback(self) -> MetricsSettings:
        for service in _SERVICES:
            address = self.of(service)
            if address and not self.allow_remote and not is_loopback(address):
                raise ValueError(
                    f"expected a loopback address in metrics.{service}, or metrics.allow_remote = true: metrics are "
                    "not encrypted, and name jobs and their owners"
                )
        return self

    def of(self, service: str) -> str:
        """Address of a service's metrics; empty: nowhere."""
        return str(getattr(self, service))
