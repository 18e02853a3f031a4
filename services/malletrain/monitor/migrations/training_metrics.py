"""What scripts log of their trainings: the history of each metric, and up to where a job's values are in it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "monitor_metric_jobs",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("reporter_id", sa.String, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("names", sa.Integer, nullable=False),
        sa.Column("unix_seconds", sa.Float, nullable=False),
    )
    op.create_index("monitor_metric_jobs_owner", "monitor_metric_jobs", ["owner"])
    op.create_table(
        "monitor_metric_ends",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("stride", sa.BigInteger, nullable=False),
        sa.Column("closed", sa.Integer, nullable=False),
        *_point_columns(),
    )
    op.create_table(
        "monitor_metric_points",
        sa.Column("job_id", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        *_point_columns(primary=True),
    )


def _point_columns(primary: bool = False) -> list[sa.Column[object]]:
    return [
        sa.Column("first", sa.BigInteger, nullable=False, primary_key=primary),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("unix_seconds", sa.Float, nullable=False),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("least", sa.Float, nullable=False),
        sa.Column("most", sa.Float, nullable=False),
    ]
