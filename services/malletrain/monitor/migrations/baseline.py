"""The tables of the first release, for Monitor. Databases of earlier versions are completed to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from malletrain.runtime.database.schema_history import complete_tables

revision = "0001"
down_revision = None

METADATA = sa.MetaData()

sa.Table(
    "monitor_jobs",
    METADATA,
    sa.Column("job_id", sa.String, primary_key=True),
    sa.Column("samples", sa.BigInteger, nullable=False),
    sa.Column("samples_lost", sa.BigInteger, nullable=False),
    sa.Column("positioned", sa.Boolean, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("last_record_unix_seconds", sa.Float, nullable=False),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("reporter_id", sa.String, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("dropped_records", sa.BigInteger, nullable=False),
    sa.Column("usual_step_seconds", sa.Float, nullable=False),
)
sa.Table(
    "monitor_reporters",
    METADATA,
    sa.Column("job_id", sa.String, primary_key=True),
    sa.Column("reporter_id", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("dropped_records", sa.BigInteger, nullable=False),
)
sa.Table(
    "monitor_points",
    METADATA,
    sa.Column("job_id", sa.String, primary_key=True),
    sa.Column("nodes", sa.Integer, primary_key=True),
    sa.Column("rate", sa.Float, nullable=False),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("unix_seconds", sa.Float, nullable=False),
    sa.Column("relative_error", sa.Float, nullable=False),
)
sa.Table(
    "monitor_rescales",
    METADATA,
    sa.Column("job_id", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True),
    sa.Column("from_nodes", sa.Integer, nullable=False),
    sa.Column("to_nodes", sa.Integer, nullable=False),
    sa.Column("stall_seconds", sa.Float, nullable=False),
    sa.Column("unix_seconds", sa.Float, nullable=False),
)


def upgrade() -> None:
    """Make these tables, or what is missing of them."""
    complete_tables(op.get_bind(), METADATA)
