"""The history of the idle set, which can be replayed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "idle_history",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("unix_seconds", sa.Float, nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("joined", sa.Text, nullable=False),
        sa.Column("left_nodes", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
