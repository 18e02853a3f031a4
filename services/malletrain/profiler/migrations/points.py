"""What was measured, in a row for each job and each family. A save takes over the document of earlier versions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "profiler_points",
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
