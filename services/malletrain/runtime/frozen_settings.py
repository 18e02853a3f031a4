"""What sections of settings have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FrozenSettings(BaseModel):
    """A section, or an entry of one: what is not known is refused, and nothing changes once it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FiniteSettings(FrozenSettings):
    """A section whose numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)
