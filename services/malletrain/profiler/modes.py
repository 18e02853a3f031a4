"""Whether a job's curve is measured on purpose."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """`auto` measures where no usable curve is known, `always` once for every job, `never` not unless asked."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"
