"""The tables of the first release, for JobManager. Databases of earlier versions are completed to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from malletrain.runtime.database.schema_history import complete_tables

revision = "0001"
down_revision = None

METADATA = sa.MetaData()

BIG_INTEGER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
sa.Table(
    "jobs",
    METADATA,
    sa.Column("number", BIG_INTEGER, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(16), nullable=False, index=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("owner", sa.String(256), nullable=False, index=True, server_default=""),
)
sa.Table(
    "journal",
    METADATA,
    sa.Column("sequence", BIG_INTEGER, primary_key=True, autoincrement=True),
    sa.Column("unix_seconds", sa.Float, nullable=False),
    sa.Column("job_number", BIG_INTEGER, nullable=False, index=True),
    sa.Column("from_state", sa.String(16)),
    sa.Column("to_state", sa.String(16), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("nodes", sa.Text, nullable=False),
    sa.Column("release_seconds", sa.Float, nullable=False),
    sa.Column("reason_code", sa.String(32), nullable=False, server_default="UNSPECIFIED"),
    sqlite_autoincrement=True,
)
sa.Table(
    "submissions",
    METADATA,
    sa.Column("request_id", sa.String(256), primary_key=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("job_numbers", sa.Text, nullable=False),
)
sa.Table(
    "counters",
    METADATA,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("value", BIG_INTEGER, nullable=False),
)
sa.Table(
    "owner_uses",
    METADATA,
    sa.Column("owner", sa.String(256), primary_key=True),
    sa.Column("node_seconds", sa.Float, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("weight", sa.Float, nullable=False),
)


def upgrade() -> None:
    """Make these tables, or what is missing of them."""
    complete_tables(op.get_bind(), METADATA)
