"""`malletrain check` on the examples with a framework: each is fit for MalleTrain as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.cli.example_checks import check_example
from tests.frameworks.needing import need

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate", "deepspeed"])
def test_the_example_is_fit_as_it_is(name: str, tmp_path: Path) -> None:
    need(name)
    found = check_example(tmp_path, f"{name}/elastic.py", "--epochs", "1000", "--step-seconds", "0.05")
    assert set(found) == {"torchrun"}
