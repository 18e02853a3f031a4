"""Usage by job and day, and of jobs that are no longer kept. That of the time before is taken from the journal."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from malletrain.job_manager.storage.earlier_usage import earlier_usage

revision = "0002"
down_revision = "0001"

_BIG_INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_AT_ONCE = 1000


def upgrade() -> None:
    """Make the tables, and fill them."""
    usage = op.create_table(
        "usage",
        sa.Column("job_number", _BIG_INTEGER, primary_key=True, autoincrement=False),
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("month", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(256), nullable=False, index=True),
        sa.Column("project", sa.String(64), nullable=False),
        *_amounts(),
        sa.Column("since", sa.Float),
        sa.Column("nodes", sa.Float),
        sa.Column("gpus", sa.Float),
        sa.Column("lost", sa.Float),
        sa.Column("samples_before", _BIG_INTEGER),
        sa.Column("preemptions_before", _BIG_INTEGER),
    )
    op.create_table(
        "usage_of_removed",
        sa.Column("owner", sa.String(256), primary_key=True),
        sa.Column("project", sa.String(64), primary_key=True),
        sa.Column("month", sa.Integer, primary_key=True, autoincrement=False),
        *_amounts(),
    )
    connection = op.get_bind()
    waiting: list[dict[str, Any]] = []
    for row in earlier_usage(connection):
        waiting.append(row)
        if len(waiting) >= _AT_ONCE:
            connection.execute(sa.insert(usage), waiting)
            waiting = []
    if waiting:
        connection.execute(sa.insert(usage), waiting)


def _amounts() -> list[sa.Column[Any]]:
    names = ("node_seconds", "gpu_seconds", "lost_node_seconds")
    whole = ("samples", "preemptions")
    return [
        *(sa.Column(name, sa.Float, nullable=False) for name in names),
        *(sa.Column(name, _BIG_INTEGER, nullable=False) for name in whole),
    ]
