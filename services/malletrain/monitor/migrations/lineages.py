"""Which processes hand on the model of a job in memory: without positions, another lineage begins anew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column; of jobs that are known already it is not known."""
    op.add_column("monitor_jobs", sa.Column("lineage", sa.String, nullable=False, server_default=""))
