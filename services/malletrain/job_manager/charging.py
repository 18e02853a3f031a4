"""What usage is charged with: rates and discounts, by months. Pure.

BFTrainer (section 1) expects centres to reward those who train on idle nodes by reduced charges.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, field_validator

from malletrain.job_manager.machine.usage import UsageAmounts

_HOUR_SECONDS = 3600.0
_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])\Z")
_MIN_YEAR = 1970


class ChargeRate(BaseModel):
    """The rate and the discount that apply from a month on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    from_month: str = Field(description="The first month (UTC) for which it holds, as 2026-08.")
    node_hour: float = Field(default=0.0, ge=0, le=1e9, description="Charge of a node-hour.")
    gpu_hour: float = Field(default=0.0, ge=0, le=1e9, description="Charge of a GPU-hour, in addition.")
    discount: float = Field(
        default=0.0, ge=0, le=1, description="Part of these charges that is waived, 0 to 1: 0.75 leaves a quarter."
    )

    @field_validator("from_month")
    @classmethod
    def _is_month(cls, value: str) -> str:
        match = _MONTH.match(value)
        if match is None or int(match[1]) < _MIN_YEAR:
            raise ValueError("expected a month as 2026-08")
        return value

    @property
    def month(self) -> int:
        """The number of its first month, as `malletrain.job_manager.machine.usage.month_of` counts."""
        year, _, month = self.from_month.partition("-")
        return 12 * int(year) + int(month) - 1


@dataclass(frozen=True)
class Charge:
    """What the usage of a time costs.

    Attributes:
        full: Without the discount.
        reduced: With it: what is charged.
    """

    full: float = 0.0
    reduced: float = 0.0

    def __add__(self, other: Charge) -> Charge:
        """The sum of both."""
        return Charge(self.full + other.full, self.reduced + other.reduced)


def charge_of(amounts: UsageAmounts, month: int, rates: Sequence[ChargeRate]) -> Charge:
    """What the usage of a month is charged with; nothing in months before the first rate.

    Args:
        amounts: The usage.
        month: Number of the month.
        rates: Rates, by ascending months.
    """
    rate = next((known for known in reversed(rates) if known.month <= month), None)
    if rate is None:
        return Charge()
    hours, gpu_hours = amounts.node_seconds / _HOUR_SECONDS, amounts.gpu_seconds / _HOUR_SECONDS
    full = hours * rate.node_hour + gpu_hours * rate.gpu_hour
    return Charge(full, full * (1.0 - rate.discount))
