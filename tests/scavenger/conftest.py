from __future__ import annotations

import pytest

from malletrain.scavenger.fragments import Trace, read_trace
from tests.support.shared import shared_path


@pytest.fixture(scope="session")
def summit() -> Trace:
    """A week on Summit, read once."""
    return read_trace(shared_path("traces/summit-2021-02-week1.csv.gz"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: needs a real Slurm (skipped with a reason where it is not installed)")
