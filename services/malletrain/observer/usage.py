"""Who used what, as a table that billing reads, and in sums. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime

from malletrain.v1 import job_manager_pb2

HOUR_SECONDS = 3600.0
MONTHLY = (
    job_manager_pb2.USAGE_KEY_MONTH,
    job_manager_pb2.USAGE_KEY_OWNER,
    job_manager_pb2.USAGE_KEY_PROJECT,
)
"""By what the table of a site's billing is added up."""
_SUMS = ("node_seconds", "gpu_seconds", "lost_node_seconds", "samples", "preemptions", "full_charge", "charge")


def billing_columns(rows: Iterable[job_manager_pb2.UsageRow], currency: str) -> dict[str, list[object]]:
    """Columns of the CSV, always the same ones; what was not asked for is empty (docs/operators/usage.md)."""
    known = list(rows)
    return {
        "month": [row.month for row in known],
        "owner": [row.owner for row in known],
        "project": [row.project for row in known],
        "job": [row.job_id for row in known],
        "node_hours": [f"{row.node_seconds / HOUR_SECONDS:.6f}" for row in known],
        "gpu_hours": [f"{row.gpu_seconds / HOUR_SECONDS:.6f}" for row in known],
        "lost_node_hours": [f"{row.lost_node_seconds / HOUR_SECONDS:.6f}" for row in known],
        "samples": [row.samples for row in known],
        "preemptions": [row.preemptions for row in known],
        "full_charge": [f"{row.full_charge:.4f}" for row in known],
        "charge": [f"{row.charge:.4f}" for row in known],
        "currency": [currency for _ in known],
    }


def sum_rows(
    rows: Iterable[job_manager_pb2.UsageRow], key: Callable[[job_manager_pb2.UsageRow], str] = lambda _: ""
) -> dict[str, job_manager_pb2.UsageRow]:
    """Rows added up by something of them; those with most node-seconds first."""
    sums: dict[str, job_manager_pb2.UsageRow] = {}
    for row in rows:
        total = sums.setdefault(key(row), job_manager_pb2.UsageRow())
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + getattr(row, name))
    return dict(sorted(sums.items(), key=lambda entry: (-entry[1].node_seconds, entry[0])))


def month_bounds(month: str) -> tuple[str, str]:
    """First day of a month, as 2026-07-01, and of the one after it."""
    first = date.fromisoformat(f"{month}-01")
    following = date(first.year + first.month // 12, first.month % 12 + 1, 1)
    return first.isoformat(), following.isoformat()


def month_at(unix_seconds: float) -> str:
    """The month of a moment in UTC, as 2026-07."""
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m}"


def cut_in_words(months: Sequence[str]) -> str:
    """What an answer has left out; empty: nothing."""
    if not months:
        return ""
    named = ", ".join(months)
    return (
        f"without the jobs of {named} that are no longer kept: their usage is known for whole months only, and the "
        "days that were asked for cut these in two"
    )
