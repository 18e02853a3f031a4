from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.supervisor.bootstrap import imports_of, initialiser_of
from malletrain.supervisor.worker_command import split_python


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "train.py", "--x", "1"], (["python"], "script", ["train.py", "--x", "1"])),
        (["/usr/bin/python3.11", "-u", "train.py"], (["/usr/bin/python3.11", "-u"], "script", ["train.py"])),
        (
            ["python3", "-W", "ignore", "-m", "pkg.train", "a"],
            (["python3", "-W", "ignore"], "module", ["pkg.train", "a"]),
        ),
        (["python", "-c", "print(1)"], None),
        (["python"], None),
        (["./train.sh", "python"], None),
        (["pythonic", "train.py"], None),
    ],
)
def test_python_commands_are_taken_apart(command: list[str], expected: object) -> None:
    assert split_python(command) == expected


def test_a_scripts_imports_are_found_but_not_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "package").mkdir()
    script = tmp_path / "train.py"
    script.write_text(
        "import os, json as j\nfrom sklearn.datasets import load_digits\nfrom . import x\nimport helper\n"
        "import package.part\nfrom helper import a\nif True:\n    import hidden\n"
    )
    assert imports_of(script) == ["os", "json", "sklearn.datasets"]


@pytest.mark.parametrize("content", ["def (", "\0", None])
def test_a_script_that_can_not_be_read_has_no_imports(tmp_path: Path, content: str | None) -> None:
    script = tmp_path / "train.py"
    if content is not None:
        script.write_text(content)
    assert imports_of(script) == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("import horovod.torch as hvd", True),
        ("from horovod import torch as hvd", True),
        ("from malletrain.client.horovod import ElasticTraining", True),
        ("from malletrain.client import elastic\nfrom malletrain.client.elastic import ElasticTraining", True),
        ("import subprocess", False),
        ("import horovodlike", False),
        ("from malletrain.client import report", False),
    ],
)
def test_scripts_that_initialise_horovod_themselves_are_told_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(content)
    monkeypatch.setenv("MALLETRAIN_BACKEND", "horovod")
    assert initialiser_of(script) == (("horovod.torch", "init") if expected else None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("from malletrain.client.distributed import ElasticTraining", True),
        ("from malletrain.client.distributed import ElasticTraining\nrank = os.environ['RANK']", False),
        ("from malletrain.client.distributed import ElasticTraining\nn = os.environ['LOCAL_RANK']", False),
        ("import torch.distributed as dist", False),
        ("import horovod.torch as hvd", False),
    ],
)
def test_a_torchrun_script_waits_in_its_initialisation_only_if_it_needs_no_place_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(content)
    monkeypatch.setenv("MALLETRAIN_BACKEND", "torchrun")
    assert initialiser_of(script) == (("torch.distributed", "init_process_group") if expected else None)
