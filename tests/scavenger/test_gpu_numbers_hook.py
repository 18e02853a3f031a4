"""The hook that tells jobs of PBS which GPUs of their host are theirs."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

SCRIPT = Path(__file__).parents[2] / "deploy" / "pbs" / "gpu_numbers_hook.py"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOK = load("gpu_numbers_hook")


@pytest.mark.parametrize(
    ("exec_vnode", "wanted"),
    [
        ("(n1:ncpus=2:ngpus=1)", 1),
        ("(n1:ncpus=2:ngpus=2:mem=4kb)+(n2:ngpus=3)", 2),
        ("(n1:ncpus=2)+(n1:ngpus=1)", 1),
        ("(n1[0]:ngpus=1+n1[1]:ncpus=2:ngpus=2)+(n2:ngpus=1)", 3),
        ("(n1:ncpus=2)", 0),
        ("(n1:ngpus_old=7)", 0),
        ("None", 0),
    ],
)
def test_how_many_gpus_of_a_host_a_job_was_given(exec_vnode: str, wanted: int) -> None:
    assert HOOK.wanted_gpus(exec_vnode, {"n1", "n1[0]", "n1[1]"}) == wanted


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3), st.booleans()), max_size=20))
def test_no_two_living_jobs_have_the_same_number(steps: list[tuple[str, int, bool]]) -> None:
    held: dict[str, list[int]] = {}
    living: dict[str, int] = {}
    for job, wanted, ends in steps:
        if ends:
            living.pop(job, None)
            continue
        living[job] = wanted
        held = HOOK.assigned(held, job, wanted, set(living))
        assert len(held.get(job, [])) == wanted
        numbers = [number for name in living for number in held.get(name, [])]
        assert len(numbers) == len(set(numbers))
        assert max(numbers, default=0) < max(1, sum(map(len, held.values())) + 3)


def test_a_job_that_starts_programs_twice_keeps_its_numbers_and_gives_them_back(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    for job in ("1.head", "2.head"):
        (tmp_path / "jobs" / f"{job}.JB").touch()
    assert HOOK.change(str(tmp_path), "1.head", 2) == [0, 1]
    assert HOOK.change(str(tmp_path), "2.head", 1) == [2]
    assert HOOK.change(str(tmp_path), "1.head", 2) == [0, 1]
    assert HOOK.change(str(tmp_path), "1.head", None) == []
    assert HOOK.change(str(tmp_path), "3.head", 1) == [0]
    (tmp_path / "jobs" / "2.head.JB").unlink()
    assert HOOK.change(str(tmp_path), "4.head", 2) == [0, 1], "of a job that has gone without a word nothing is kept"
    assert (tmp_path / "gpu_numbers").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", '{"1.head": [0, ', "[]", '{"1.head": ["0"]}', '{"1.head": 1}', "\xff"])
def test_after_an_unreadable_file_no_gpu_is_given_while_jobs_run_that_may_have_it(tmp_path: Path, text: str) -> None:
    for job in ("1.head", "2.head", "3.head"):
        jobs(tmp_path, job)
    (tmp_path / "gpu_numbers").write_text(text, encoding="latin-1")
    for _ in range(2):
        with pytest.raises(HOOK.UnknownNumbersError, match=r"which GPUs 1\.head, 2\.head of this host have"):
            HOOK.change(str(tmp_path), "3.head", 1)
    assert HOOK.change(str(tmp_path), "4.head", 0) == [], "who was given none needs none"
    (tmp_path / "jobs" / "1.head.JB").unlink()
    with pytest.raises(HOOK.UnknownNumbersError, match=r"which GPUs 2\.head of"):
        HOOK.change(str(tmp_path), "3.head", 1)
    assert HOOK.change(str(tmp_path), "2.head", None) == []
    assert HOOK.change(str(tmp_path), "3.head", 1) == [0]


def test_an_unreadable_file_is_made_anew_where_no_other_job_is(tmp_path: Path) -> None:
    jobs(tmp_path, "1.head")
    (tmp_path / "gpu_numbers").write_text("{")
    assert HOOK.change(str(tmp_path), "1.head", 2) == [0, 1]
    (tmp_path / "gpu_numbers").write_text("{")
    assert HOOK.change(str(tmp_path), "1.head", None) == []
    assert json.loads((tmp_path / "gpu_numbers").read_text()) == {}


def test_the_file_is_whole_or_as_before_when_the_host_goes_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs(tmp_path, "1.head")
    HOOK.change(str(tmp_path), "1.head", 2)
    before = (tmp_path / "gpu_numbers").read_bytes()

    def goes_down(*_: Any) -> None:
        raise OSError("the host goes down")

    jobs(tmp_path, "2.head")
    with monkeypatch.context() as during:
        during.setattr(os, "fsync", goes_down)
        with pytest.raises(OSError, match="goes down"):
            HOOK.change(str(tmp_path), "2.head", 1)
    assert (tmp_path / "gpu_numbers").read_bytes() == before
    assert HOOK.change(str(tmp_path), "2.head", 1) == [2]
    assert {path.name for path in tmp_path.iterdir()} == {"jobs", "gpu_numbers", "gpu_numbers.lock"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("gpu_numbers*"))


def jobs(folder: Path, job: str) -> None:
    (folder / "jobs").mkdir(exist_ok=True)
    (folder / "jobs" / f"{job}.JB").touch()


def test_within_pbs_a_job_is_refused_whose_gpus_are_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, said = tmp_path / "mom_priv", list[str]()
    folder.mkdir()
    jobs(folder, "7.head")
    jobs(folder, "8.head")
    (folder / "gpu_numbers").write_text("{")
    event: Any = SimpleNamespace(
        **{"type": 1, "env": {}, "vnode_list": {"n1": None}, "reject": said.append},
        job=SimpleNamespace(id="7.head", exec_vnode="(n1:ncpus=4:ngpus=2)", rerun=lambda: said.append("queued again")),
    )
    pbs = SimpleNamespace(event=lambda: event, EXECJOB_END=2, pbs_conf={"PBS_HOME": str(tmp_path)})
    monkeypatch.setitem(sys.modules, "pbs", pbs)
    load("gpu_numbers_hook_refusing")
    assert event.env == {}
    assert said[0] == "queued again"
    assert "8.head" in said[1]
    assert len(said) == 2


def test_within_pbs_the_variable_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mom_priv" / "jobs").mkdir(parents=True)
    (tmp_path / "mom_priv" / "jobs" / "7.head.JB").touch()
    event: Any = SimpleNamespace(
        type=1, env={}, vnode_list={"n1": None}, job=SimpleNamespace(id="7.head", exec_vnode="(n1:ncpus=4:ngpus=2)")
    )
    pbs = SimpleNamespace(event=lambda: event, EXECJOB_END=2, pbs_conf={"PBS_HOME": str(tmp_path)})
    monkeypatch.setitem(sys.modules, "pbs", pbs)
    load("gpu_numbers_hook_in_pbs")
    assert event.env == {"CUDA_VISIBLE_DEVICES": "0\\,1"}
    event.type = pbs.EXECJOB_END
    load("gpu_numbers_hook_in_pbs")
    assert json.loads((tmp_path / "mom_priv" / "gpu_numbers").read_text()) == {}
