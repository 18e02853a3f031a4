from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import read_trace
from tests.support.shared import shared_path


@pytest.fixture(scope="session")
def summit() -> Trace:
    """A week on Summit, read once."""
    return read_trace(shared_path("traces/summit-2021-02-week1.csv.gz"))


@pytest.fixture
def grpcurl() -> str:
    """Path of grpcurl."""
    beside = Path(sys.executable).with_name("grpcurl")
    found = str(beside) if beside.exists() else shutil.which("grpcurl")
    if found is None:
        pytest.skip("grpcurl is not installed")
    return found
