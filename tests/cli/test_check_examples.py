"""`malletrain check` on the examples that need no framework: each is fit for MalleTrain as it is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.cli.example_checks import check_example

pytestmark = [pytest.mark.faulty_scripts, pytest.mark.timeout(600)]


def test_the_digits_are_fit_for_both_backends(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn")
    found = check_example(tmp_path, "digits/train.py", "--samples", "2000000")
    assert set(found) == ({"torchrun", "horovod"} if find_spec("horovod") else {"torchrun"})
    for answers in found.values():
        assert all(answer.startswith("yes") for answer in answers.values()), answers


def test_fsdp2_is_fit(tmp_path: Path) -> None:
    found = check_example(tmp_path, "fsdp2/elastic.py", "--epochs", "1000", "--step-seconds", "0.05")
    assert set(found) == {"torchrun"}
    assert all(answer.startswith("yes") for answer in found["torchrun"].values()), found


def test_a_gpt_of_one_stage_is_fit(tmp_path: Path) -> None:
    sizes = ("--pipeline", "1", "--tensor", "1")
    found = check_example(tmp_path, "gpt/train.py", "--epochs", "1000", "--step-seconds", "0.05", *sizes)
    assert set(found) == {"torchrun"}
    assert not any(answer.startswith("no") for answer in found["torchrun"].values()), found
