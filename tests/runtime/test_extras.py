"""An installation with the extra `head` alone: services run without what the other extras bring."""

from __future__ import annotations

import subprocess
import sys

import pytest

_OTHER_EXTRAS = (
    "accelerate", "bokeh", "deepspeed", "distributed", "horovod", "hypothesis", "jinja2", "lightning", "matplotlib",
    "numba", "opentelemetry", "playwright", "psutil", "psycopg", "pyarrow", "sklearn", "torch", "transformers",
)  # fmt: skip
_WITHOUT = f"""
import importlib, sys
for name in {_OTHER_EXTRAS!r}:
    sys.modules[name] = None
"""


def _run(script: str) -> str:
    command = [sys.executable, "-c", _WITHOUT + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("service", ["scavenger", "allocator", "job_manager", "monitor", "profiler"])
def test_a_service_needs_the_extra_head_alone(service: str) -> None:
    _run(f"importlib.import_module('malletrain.{service}.service')")


def test_all_verbs_need_the_extra_head_alone() -> None:
    _run("from malletrain.cli.main import application; application()")


def test_a_database_of_postgresql_asks_for_its_extra() -> None:
    said = _run(
        """
from pathlib import Path
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.engine import open_engine
from malletrain.runtime.errors import InvalidInputError
try:
    open_engine(DatabaseAddress("monitor", Path("/nonexistent"), "postgresql+psycopg://a@b/c"))
except InvalidInputError as error:
    print(error)
"""
    )
    assert "pip install 'malletrain[postgresql]'" in said
    assert "database_url" in said


def test_an_idle_service_has_loaded_no_more_than_it_needs() -> None:
    script = """
import sys, malletrain.allocator.service
from malletrain.allocator.problem.allocation_problem import AllocationProblem
from malletrain.allocator.solvers.solving import solve
assert solve(AllocationProblem(("n1",), 60.0)).objective == 0
print(*({"numba", "scipy", "psycopg", "alembic"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
