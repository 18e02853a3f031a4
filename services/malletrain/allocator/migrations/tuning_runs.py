"""The journal of auto-tuning."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "tuning_runs",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("unix_seconds", sa.Float, nullable=False),
        sa.Column("event", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
