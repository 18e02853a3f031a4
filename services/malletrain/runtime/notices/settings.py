"""Settings of whoever is sent notices. They are the operator's: no job and no caller can set or see them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from malletrain.runtime.frozen_settings import FiniteSettings


class ReceiverSettings(FiniteSettings):
    """Whom to send notices, and how often to try."""

    webhook_file: Path | None = Field(
        default=None,
        description="File whose first line is the URL (https, or http on this machine) to which notices are posted, "
        "and whose second line, if there is one, is the value of the header Authorization. Only its owner may read it.",
    )
    command: tuple[str, ...] = Field(
        default=(),
        max_length=100,
        description="Program, by its absolute path, and arguments. It runs as the account that runs the service, and "
        "gets each notice as JSON on standard input.",
    )
    timeout_seconds: float = Field(
        default=10.0, gt=0, le=600, description="How long a delivery may take before it is ended and tried again."
    )
    retry_seconds: float = Field(
        default=1.0, gt=0, le=3600, description="Pause before the second attempt; it doubles with every further one."
    )
    retry_max_seconds: float = Field(default=300.0, gt=0, le=86_400, description="Longest such pause.")
    give_up_seconds: float = Field(
        default=86_400.0, gt=0, le=1e8, description="A notice that could not be delivered for so long is left out."
    )
