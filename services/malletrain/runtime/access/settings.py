"""Settings of the section `[access]`. There is none that turns the checks off."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_LIFESPAN_SECONDS = 366 * 86400.0
"""No token lives longer, whatever the settings say: revocations may be dropped after so long."""


class AccessSettings(BaseModel):
    """Roles of users, how long tokens live, and whether MUNGE vouches for users."""

    model_config = ConfigDict(extra="forbid")

    operators: tuple[str, ...] = Field(
        default=(), description="Users to whom MUNGE gives the role operator, beside the services' own account."
    )
    viewers: tuple[str, ...] = Field(
        default=(), description="Users to whom MUNGE gives the role viewer; all others get the role user."
    )
    default_lifespan_seconds: float = Field(
        default=12 * 3600.0, gt=0, description="Lifespan of tokens for which none is asked for."
    )
    max_lifespan_seconds: float = Field(
        default=30 * 86400.0,
        gt=0,
        le=MAX_LIFESPAN_SECONDS,
        description="Longest lifespan that may be asked for.",
    )
    leeway_seconds: float = Field(
        default=30.0, ge=0, le=600, description="How far the clocks of those who make and check tokens may differ."
    )
    munge: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether users may prove by MUNGE who they are; auto: where its commands are installed.",
    )
    munge_path: str = Field(default="", description="Folder of the commands munge and unmunge; none: as PATH says.")
    munge_socket: str = Field(default="", description="Socket of munged; none: MUNGE's default.")
    viewer_folder: Path | None = Field(
        default=None,
        description="Folder in which the services keep what a dashboard of another account or container needs: a token "
        "of the role viewer, and the certificate by which callers know the services. The files are readable by the "
        "folder's group; none: the services keep no such files.",
    )
    reports_without_tls: bool = Field(
        default=False,
        description="Whether trainers on this machine may report to Monitor without TLS, and are told to: for those "
        "whose `malletrain.client` is of version 0.1, and jobs that were started by it. Who takes Monitor's port while "
        "it is free then gets the tokens by which jobs report; no other call is taken without TLS.",
    )
    reflection: Literal["auto", "on", "off"] = Field(
        default="auto", description="Whether gRPC reflection needs no identity; auto: where a service is on loopback."
    )
