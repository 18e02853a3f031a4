"""When the first batch of each reporter ended, so that a replay knows how long starts took."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column; of reporters that are known already it is not known."""
    column = sa.Column("first_unix_seconds", sa.Float, nullable=False, server_default="0")
    op.add_column("monitor_reporters", column)
