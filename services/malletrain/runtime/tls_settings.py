"""Settings of the section `[tls]`. None of them turns encryption off: off loopback, services always use TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field


class TlsSettings(BaseModel):
    """Certificates of services that do not listen on loopback."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificate_file: Path | None = Field(
        default=None,
        description="The site's own certificate of the services, in PEM, followed by those that lead to its CA; none: "
        "the installation's CA makes one for each service.",
    )
    key_file: Path | None = Field(default=None, description="The private key of `certificate_file`, in PEM.")
    authority_file: Path | None = Field(
        default=None,
        description="Certificates of the CAs by which callers know the services, in PEM; none: `ca.pem` in the state "
        "folder, which the services write.",
    )
    server_name: Literal["auto", "role", "host"] = Field(
        default="auto",
        description="The name that callers expect in a service's certificate: that of its role, as in those of the "
        "installation's CA, or the host of its address; auto: the host if `certificate_file` is set.",
    )
    lifespan_seconds: float = Field(
        default=86_400.0,
        ge=60,
        le=366 * 86_400,
        description="Lifespan of certificates of the installation's CA. They are renewed once half of it is over.",
    )

    @pydantic.model_validator(mode="after")
    def _together(self) -> TlsSettings:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("expected both certificate_file and key_file, or neither")
        if self.certificate_file is not None and self.authority_file is None:
            raise ValueError("expected authority_file beside certificate_file: callers know the services by it")
        return self

    @property
    def expects_host(self) -> bool:
        """Whether callers expect the host of the address in a service's certificate, rather than its role."""
        return self.server_name == "host" or (self.server_name == "auto" and self.certificate_file is not None)
