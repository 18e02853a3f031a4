"""Utilization efficiency U and its bound, by minute."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "utilization_minutes",
        sa.Column("unix_seconds", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("nodes", sa.Float, nullable=False),
        sa.Column("trained_samples", sa.Float, nullable=False),
        sa.Column("free_samples", sa.Float, nullable=False),
        sa.Column("static_samples", sa.Float, nullable=False),
    )
