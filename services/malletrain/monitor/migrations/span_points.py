"""Throughput by number of nodes and by how near each other they were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "monitor_span_points",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("nodes", sa.Integer, primary_key=True),
        sa.Column("shared_levels", sa.Integer, primary_key=True),
        sa.Column("rate", sa.Float, nullable=False),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("unix_seconds", sa.Float, nullable=False),
        sa.Column("relative_error", sa.Float, nullable=False),
    )
