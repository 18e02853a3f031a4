from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from malletrain.common import environment, job_folder
from malletrain.common.tracker_runs import MLFLOW_RUN_FILE, VARIABLE, parse_trackers, tracker_variables
from malletrain.common.worker_process import BOOTSTRAP
from tests.support.waiting import wait_until


def job(folder: Path, trackers: str = "wandb,mlflow,tensorboard", **others: str) -> dict[str, str]:
    (folder / job_folder.INSTANCE_FILE).write_text("0123456789abcdef\n")
    return {"MALLETRAIN_JOB_DIR": str(folder), "MALLETRAIN_TRACKERS": trackers, **others}


def test_the_name_of_the_variable_is_that_of_the_environment() -> None:
    assert VARIABLE == environment.TRACKERS


def test_rank_0_goes_on_with_the_runs_of_its_job(tmp_path: Path) -> None:
    expected = {
        "WANDB_RUN_ID": "malletrain-0123456789abcdef",
        "WANDB_RESUME": "allow",
        "TENSORBOARD_LOGGING_DIR": str(tmp_path / "tensorboard"),
    }
    assert tracker_variables(job(tmp_path)) == expected
    (tmp_path / MLFLOW_RUN_FILE).parent.mkdir()
    (tmp_path / MLFLOW_RUN_FILE).write_text("5f00\n")
    assert tracker_variables(job(tmp_path, RANK="0")) == {**expected, "MLFLOW_RUN_ID": "5f00"}


@pytest.mark.parametrize("others", [{"RANK": "1"}, {"HOROVOD_RANK": "2"}, {"MALLETRAIN_TRACKERS": ""}])
def test_other_ranks_and_jobs_that_do_not_ask_get_nothing(tmp_path: Path, others: dict[str, str]) -> None:
    assert tracker_variables({**job(tmp_path), **others}) == {}


def test_what_a_user_sets_stays(tmp_path: Path) -> None:
    own = {"WANDB_RESUME": "never", "MLFLOW_RUN_ID": "mine", "TENSORBOARD_LOGGING_DIR": "/elsewhere"}
    assert tracker_variables(job(tmp_path, **own)) == {}
    assert "WANDB_RESUME" not in tracker_variables(job(tmp_path, WANDB_RUN_ID="mine"))


def test_outside_of_jobs_nothing_is_set() -> None:
    assert tracker_variables({"MALLETRAIN_TRACKERS": "wandb"}) == {}


@pytest.mark.parametrize("content", ["", "x" * 65, "../../etc", "a b"])
def test_a_file_that_has_no_identifier_is_not_believed(tmp_path: Path, content: str) -> None:
    environ = job(tmp_path)
    (tmp_path / MLFLOW_RUN_FILE).parent.mkdir()
    (tmp_path / MLFLOW_RUN_FILE).write_text(content)
    (tmp_path / job_folder.INSTANCE_FILE).write_text(content)
    assert set(tracker_variables(environ)) == {"TENSORBOARD_LOGGING_DIR"}


def test_names_of_trackers_are_checked() -> None:
    assert parse_trackers("mlflow, wandb,,mlflow") == ("mlflow", "wandb")
    with pytest.raises(ValueError, match=r"^wandb, mlflow, tensorboard, separated by commas, got 'neptune'$"):
        parse_trackers("wandb,neptune")


@pytest.mark.parametrize(("rank", "expected"), [("0", "malletrain-0123456789abcdef"), ("1", "none")])
@pytest.mark.processes
def test_a_worker_has_the_variables_when_its_script_begins(tmp_path: Path, rank: str, expected: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nprint(os.environ.get('WANDB_RUN_ID', 'none'), flush=True)\n")
    environ = {**os.environ, **job(tmp_path, "wandb"), "MALLETRAIN_BACKEND": "command"}
    control, ours = os.pipe()
    theirs, status = os.pipe()
    command = [sys.executable, str(BOOTSTRAP), str(os.getpid()), str(control), str(status), "cold", sys.executable]
    worker = subprocess.Popen(
        [*command, str(script)], env=environ, pass_fds=(control, status), stdout=subprocess.PIPE, text=True
    )
    try:
        os.write(ours, f'{{"RANK": "{rank}"}}\n'.encode())
        wait_until(lambda: worker.poll() is not None, 30, "its end")
        assert worker.stdout is not None
        assert worker.stdout.read().strip() == expected
    finally:
        worker.kill()
        worker.wait()
        for descriptor in (control, ours, theirs, status):
            os.close(descriptor)
