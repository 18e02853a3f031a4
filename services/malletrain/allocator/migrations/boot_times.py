"""How long growths took, by training environment and pool. Plans are compressed from this version on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "boot_times",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("unix_seconds", sa.Float, nullable=False),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sqlite_autoincrement=True,
    )
