"""The tables of the first release, for the Allocator. Databases of earlier versions are completed to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from malletrain.runtime.database.schema_history import complete_tables

revision = "0001"
down_revision = None

METADATA = sa.MetaData()

sa.Table(
    "plans",
    METADATA,
    sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("plan", sa.LargeBinary, nullable=False),
)


def upgrade() -> None:
    """Make these tables, or what is missing of them."""
    complete_tables(op.get_bind(), METADATA)
