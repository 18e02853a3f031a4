from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from malletrain.client.trackers import TrackerNote, active_mlflow_run, note_mlflow_run, set_variables
from malletrain.client.warn_once import WarnOnce
from malletrain.common import job_folder
from malletrain.common.tracker_runs import MLFLOW_RUN_FILE


def job(folder: Path, trackers: str = "mlflow") -> dict[str, str]:
    (folder / job_folder.INSTANCE_FILE).write_text("abc\n")
    environ = {"MALLETRAIN_JOB_ID": "j000001", "MALLETRAIN_JOB_DIR": str(folder), "MALLETRAIN_MONITOR": "localhost:1"}
    return {**environ, "MALLETRAIN_TRACKERS": trackers}


class FakeMlflow(ModuleType):
    run_id: str | None = None

    def active_run(self) -> SimpleNamespace | None:
        return None if self.run_id is None else SimpleNamespace(info=SimpleNamespace(run_id=self.run_id))


class FakeHorovod(ModuleType):
    def __init__(self, rank: int) -> None:
        super().__init__("horovod.torch")
        self.is_initialized = lambda: True
        self.rank = lambda: rank
        self.size = lambda: 2


def test_the_first_active_run_is_noted_for_the_next_processes(tmp_path: Path) -> None:
    mlflow = FakeMlflow("mlflow")
    note = TrackerNote(job(tmp_path), {"mlflow": mlflow}, WarnOnce())
    note.look()
    assert not (tmp_path / MLFLOW_RUN_FILE).exists()
    for run_id in ("5f00", "6a11"):
        mlflow.run_id = run_id
        note.look()
    TrackerNote(job(tmp_path), {"mlflow": mlflow}, WarnOnce()).look()
    assert (tmp_path / MLFLOW_RUN_FILE).read_text() == "5f00\n"


def test_nothing_is_noted_of_a_job_that_does_not_ask(tmp_path: Path) -> None:
    mlflow = FakeMlflow("mlflow")
    mlflow.run_id = "5f00"
    TrackerNote(job(tmp_path, "wandb"), {"mlflow": mlflow}, WarnOnce()).look()
    assert not (tmp_path / MLFLOW_RUN_FILE).exists()


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mlflow = FakeMlflow("mlflow")
    mlflow.run_id = "5f00"
    environ = {**job(tmp_path), "MALLETRAIN_JOB_DIR": str(tmp_path / "gone")}
    note = TrackerNote(environ, {"mlflow": mlflow}, WarnOnce())
    note.look()
    note.look()
    assert capsys.readouterr().err.count("MLflow's run can't be noted") == 1


def test_a_run_without_an_identifier_of_mlflow_is_none() -> None:
    mlflow = FakeMlflow("mlflow")
    assert active_mlflow_run({}) == active_mlflow_run({"mlflow": ModuleType("mlflow")}) == ""
    mlflow.run_id = "a\nb"
    assert active_mlflow_run({"mlflow": mlflow}) == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_under_elastic_horovod_the_rank_of_the_moment_counts(tmp_path: Path, rank: int) -> None:
    environ = {**job(tmp_path, "wandb"), "HOROVOD_RANK": str(1 - rank)}
    assert set_variables(environ, {"horovod.torch": FakeHorovod(rank)}, ()) is (rank == 0)
    assert environ.get("WANDB_RUN_ID") == ("malletrain-abc" if rank == 0 else None)


def test_a_script_may_name_its_trackers_itself(tmp_path: Path) -> None:
    environ = job(tmp_path, "")
    assert set_variables(environ, {}, ("tensorboard",))
    assert environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "tensorboard")
    with pytest.raises(ValueError, match="got 'neptune'"):
        set_variables(environ, {}, ("neptune",))


def test_a_run_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in job(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "horovod.torch", raising=False)
    with pytest.raises(ValueError, match="run_id: expected"):
        note_mlflow_run("a b")
    note_mlflow_run("5f00")
    note_mlflow_run("6a11")
    assert (tmp_path / MLFLOW_RUN_FILE).read_text() == "5f00\n"
