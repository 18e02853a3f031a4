"""Settings of the section `[tracing]`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pydantic
from pydantic import Field

from malletrain.common.addresses import is_loopback
from malletrain.runtime.frozen_settings import FrozenSettings


class TracingSettings(FrozenSettings):
    """The collector to which services send what they trace."""

    endpoint: str = Field(
        default="",
        description="Collector of OpenTelemetry that takes OTLP over gRPC, as http://HOST:PORT or https://HOST:PORT; "
        "empty: nothing is traced.",
    )
    sample_ratio: float = Field(
        default=1.0, ge=0, le=1, description="Part of the events, and of the plans without one, that are traced."
    )
    headers_file: Path | None = Field(
        default=None,
        description="File with headers for the collector, such as its token: a line `name: value` for each. Only the "
        "account that runs the services may have access.",
    )
    authority_file: Path | None = Field(
        default=None,
        description="Certificates of the CAs by which the collector is known, in PEM; none: those of the system.",
    )
    allow_plain_text: bool = Field(
        default=False,
        description="Whether a collector off loopback may be reached without TLS: whoever is on the way reads "
        "identifiers of jobs and names of nodes.",
    )
    queue_spans: int = Field(
        default=2048, ge=64, le=100_000, description="Most spans of a service that wait to be sent; others are dropped."
    )

    @property
    def address(self) -> str:
        """HOST:PORT of the collector; empty: there is none."""
        return urlsplit(self.endpoint).netloc

    @property
    def encrypted(self) -> bool:
        """Whether it is reached over TLS."""
        return urlsplit(self.endpoint).scheme == "https"

    @pydantic.field_validator("endpoint")
    @classmethod
    def _url(cls, value: str) -> str:
        if not value:
            return value
        try:
            parts = urlsplit(value)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and bool(parts.port)
        except ValueError:
            good = False
        if not good or "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError("expected http://HOST:PORT or https://HOST:PORT, or nothing")
        return value.rstrip("/")

    @pydantic.model_validator(mode="after")
    def _confidential(self) -> TracingSettings:
        if not self.endpoint or self.encrypted or is_loopback(self.address):
            return self
        if not self.allow_plain_text:
            raise ValueError("expected https in tracing.endpoint off loopback, or tracing.allow_plain_text = true")
        if self.headers_file is not None:
            raise ValueError("expected https in tracing.endpoint: tracing.headers_file is not sent in plain text")
        return self
