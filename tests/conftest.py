"""What holds for all tests.

Hypothesis draws the same examples in every run; `HYPOTHESIS_PROFILE=explore` draws new ones. Services check the
invariants of their state, whether they run in the process of the test or as processes that it starts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

# The tests' own process forks, to start programs as other accounts, and serves and calls gRPC meanwhile. gRPC's fork
# handlers would start threads in the child, which then may never reach its program. What the tests start has them.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
import grpc  # noqa: F401

del os.environ["GRPC_ENABLE_FORK_SUPPORT"]

from malletrain.common.orphans import adopt_orphans
from malletrain.runtime.database.address import DatabaseAddress
from tests.support.postgresql import Locate, PostgresServer, postgresql_server

pytest_plugins = ["tests.support.second_try", "tests.support.skips"]

os.environ.setdefault("MALLETRAIN_VALIDATE_STATE", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has its background jobs ignore Ctrl-C, and so would every command that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without the phase that explains failures: it traces every line under Python < 3.12, so slowly that a machine of many
# steps ended by pytest's time limit, which hid the failure.
PHASES = [phase for phase in Phase if phase is not Phase.explain]
# Nor may a busy machine fail a test: how long examples take to make is no property of the product.
COMMON: dict[str, Any] = {"deadline": None, "phases": PHASES, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", derandomize=True, **COMMON)
settings.register_profile("explore", derandomize=False, print_blob=True, **COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresServer]:
    """A real server, without any of the services' databases."""
    with postgresql_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def locate(request: pytest.FixtureRequest, tmp_path: Path) -> Locate:
    """Makes the address of a service's database, which does not exist yet: on SQLite, and on PostgreSQL."""
    if request.param == "sqlite":
        return lambda service: DatabaseAddress(service, tmp_path)
    server: PostgresServer = request.getfixturevalue("postgresql")
    url = server.new_database()
    return lambda service: DatabaseAddress(service, tmp_path, url, server.password_file)


@pytest.fixture(autouse=True)
def _adopts_no_orphans() -> Iterator[None]:
    """Parts that adopt orphans may run in the tests' own process, which would never collect those of later tests."""
    yield
    adopt_orphans(False)
