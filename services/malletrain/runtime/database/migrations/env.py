"""Alembic's environment for the databases of all services. `malletrain.runtime.database.migrating` calls it."""

from __future__ import annotations

from alembic import context

# In the transaction of the caller, who decides when it is committed.
context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
