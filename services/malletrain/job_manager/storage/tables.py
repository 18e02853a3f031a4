"""What the tables of JobManager's database have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from sqlalchemy import BigInteger, Integer, MetaData

_T = TypeVar("_T")

METADATA = MetaData()
BIG_INTEGER = BigInteger().with_variant(Integer, "sqlite")
_MAX_VALUES = 500
"""Of one query: some builds of SQLite take no more than 999, and a submission has up to 10,000 jobs."""


def chunks(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """As many values at a time as one query may have."""
    return (values[begin : begin + _MAX_VALUES] for begin in range(0, len(values), _MAX_VALUES))
