"""Searches on live services: a driver is killed in the middle, and another goes on with its study."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import malletrain
from malletrain import LocalCluster
from malletrain.api.options import spec_of
from malletrain.caller.searching.driver import SearchJobs
from malletrain.runtime.errors import InvalidInputError
from tests.support.waiting import wait_until

optuna = pytest.importorskip("optuna", reason="needs malletrain[search]")

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300)]

SETTINGS = {"job_manager.standby_memory_mib": "0", "validate_state": "1"}
PATIENCE = 100.0
TRAINER = """\
import os, sys, time
from malletrain.client import done
x = float(sys.argv[1])
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
done({"loss": (x - 0.5) ** 2})
"""
DRIVER = """\
import malletrain, sys
malletrain.connect(config=sys.argv[1])
study = malletrain.search(
    [sys.executable, "train.py", "{x}", sys.argv[2]],
    space={"x": (0.0, 1.0)}, metric="loss", name="tuned", trials=8, at_once=2, seed=1,
    storage="studies.db", backend="command",
)
print(len(study.trials), study.best_value)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with malletrain.local(nodes=2, settings=SETTINGS) as running:
        yield running


def test_a_study_of_which_the_driver_is_killed_has_each_trial_once(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "drive.py").write_text(DRIVER)
    end = tmp_path / "end"
    command = [sys.executable, "drive.py", str(cluster.folder / "malletrain.toml"), str(end)]
    with subprocess.Popen(command, cwd=tmp_path) as driver:
        wait_until(lambda: len(cluster.jobs()) == 2, PATIENCE, "two jobs")
        wait_until(lambda: len(cluster.jobs(state="running")) == 2, PATIENCE, "two running jobs")
        os.kill(driver.pid, signal.SIGKILL)
    end.touch()
    assert cluster.jobs().wait(PATIENCE) == ["COMPLETED"] * 2
    assert len(cluster.jobs()) == 2  # nobody drives the study
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 0.")
    study = optuna.load_study(study_name="tuned", storage=f"sqlite:///{tmp_path}/studies.db")
    found = {job.id: job for job in cluster.jobs()}
    assert sorted(job.name for job in found.values()) == [f"tuned-{number}" for number in range(8)]
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 8
    for trial in study.trials:
        job = found[trial.user_attrs["job_id"]]
        assert job.name == f"tuned-{trial.number}"
        assert job.command[2] == str(trial.params["x"])
        assert job.metrics["loss"] == trial.value
    # A finished study is not driven any further.
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert again.stdout == done.stdout
    assert len(cluster.jobs()) == 8


def test_a_submission_is_done_once_although_its_options_have_changed(cluster: LocalCluster) -> None:

    jobs = SearchJobs(cluster)
    first = spec_of(["true"], {"name": "once-0", "backend": "command"})
    job_id = jobs.submit(first, "search-x-0")
    assert jobs.submit(first, "search-x-0") == job_id
    other = spec_of(["true"], {"name": "once-0", "backend": "command", "weight": 2.0})
    assert jobs.submit(other, "search-x-0") == job_id
    renamed = spec_of(["true"], {"name": "twice-0", "backend": "command"})
    with pytest.raises(InvalidInputError, match="request_id"):
        jobs.submit(renamed, "search-x-0")
    assert jobs.look(job_id, "once-0") is not None
    assert jobs.look(job_id, "other-0") is None
    assert jobs.look("j999999", "once-0") is None
    jobs.cancel("j999999")
    cluster.job(job_id).wait(PATIENCE)


def test_what_can_not_be_searched_is_told_before_there_is_a_trial(cluster: LocalCluster, tmp_path: Path) -> None:
    storage = tmp_path / "studies.db"
    space = {"x": (0.0, 1.0)}
    wrong = [
        ("space", {}),
        ("trials", {"trials": 0}),
        ("sampler", {"sampler": "grid"}),
        ("pruner", {"pruner": "mean"}),
        ("direction", {"direction": "up"}),
        ("seed", {"seed": -1}),
        ("metric", {"metric": ""}),
        ("weihgt", {"weihgt": 2}),
    ]
    for field, options in wrong:
        command = ["train", "{y}" if field == "space" else "{x}"]
        arguments = {"metric": "loss", "storage": storage, "name": "wrong"} | options
        with pytest.raises(malletrain.InvalidInputError) as caught:
            malletrain.search(command, space, **arguments)
        assert caught.value.field == field
    assert not storage.exists()
    # What JobManager refuses; put right, the search goes on with that trial.
    options = {"metric": "loss", "storage": storage, "name": "refused", "trials": 1, "backend": "command"}
    with pytest.raises(malletrain.InvalidInputError) as caught:
        malletrain.search(["false", "{x}"], space, min_nodes=3, max_nodes=2, **options)
    assert caught.value.field == "min_nodes"
    study = malletrain.search(["false", "{x}"], space, max_restarts=0, connection=cluster, **options)
    (trial,) = study.trials
    assert trial.state.name == "FAIL"
    assert trial.user_attrs["reason"].startswith(f"{trial.user_attrs['job_id']} FAILED: ")


SEARCH = """\
command = [{python!r}, "train.py", "{{x}}", {end!r}]
backend = "command"
[search]
metric = "loss"
at-once = 2
space.x = {{ low = 0.0, high = 1.0 }}
storage = "studies.journal"
"""


def test_the_command(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    end = tmp_path / "end"
    (tmp_path / "search.toml").write_text(SEARCH.format(python=sys.executable, end=str(end)))
    config = str(cluster.folder / "malletrain.toml")
    words = ["search", "search.toml", "--config", config, "--name", "typed", "--trials", "3"]
    command = [sys.executable, "-m", "malletrain.cli.main", *words]

    def mine() -> list[malletrain.Job]:
        return [job for job in cluster.jobs() if job.name.startswith("typed-")]

    def interrupted(*further: str) -> str:
        with subprocess.Popen([*command, *further], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
            assert run.stderr is not None
            try:
                said = run.stderr.readline()  # the study; the driver has begun
                wait_until(both_are_noted, PATIENCE, "two trials with jobs")
                run.send_signal(signal.SIGINT)
                said += run.communicate(timeout=PATIENCE)[1]
            finally:
                run.kill()
        assert run.returncode == 130
        return said

    def both_are_noted() -> bool:
        storage = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(tmp_path / "studies.journal"))
        )
        trials = optuna.load_study(study_name="typed", storage=storage).trials
        return sum("job_id" in trial.user_attrs for trial in trials) == 2

    said = interrupted()
    assert "its jobs go on: malletrain cancel ID ends one. The search goes on with --name typed" in said
    assert not any(job.done for job in mine())
    # With the other ending they are cancelled, and others come in their place.
    said = interrupted("--cancel-on-exit")
    assert "2 trials cancelled" in said
    assert [job.wait(PATIENCE) for job in mine()] == ["CANCELLED"] * 2
    end.touch()
    done = subprocess.run(
        [*command, "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["name"], found["direction"]) == ("typed", "minimize")
    assert [trial["state"] for trial in found["trials"]] == ["FAIL"] * 2 + ["COMPLETE"] * 3
    assert found["best"]["value"] == min(trial["value"] for trial in found["trials"][2:])
    assert len(mine()) == 5
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    lines = [line.split("\t") for line in shown.stdout.splitlines()]
    assert lines[0] == ["best trial", f"typed-{found['best']['number']}"]
    assert lines[1:] == [
        ["job", found["best"]["jobId"]],
        ["value", str(found["best"]["value"])],
        ["x", str(found["best"]["parameters"]["x"])],
    ]


LOGGING_TRAINER = """\
import os, sys, time
from malletrain.client import done, log_metrics, report
x = float(sys.argv[1])
step = 0
while not (os.path.exists(sys.argv[2]) and x < 0.5):
    step += 1
    report(1)
    log_metrics({"loss": x}, step=step)
    time.sleep(0.05)
done({"loss": x})
"""


def test_a_pruned_trial_gives_its_node_back(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOGGING_TRAINER)
    (tmp_path / "end").touch()
    # The first choice ends well at once; the second one would never end.
    storage = optuna.storages.InMemoryStorage()
    before = optuna.create_study(study_name="pruned", storage=storage)
    before.enqueue_trial({"x": 0.1})
    before.enqueue_trial({"x": 0.9})
    study = malletrain.search(
        [sys.executable, "train.py", "{x}", str(tmp_path / "end")],
        {"x": (0.0, 1.0)},
        "loss",
        name="pruned",
        trials=2,
        at_once=1,
        pruner=optuna.pruners.ThresholdPruner(upper=0.5, n_warmup_steps=2),
        storage=storage,
        backend="command",
        workdir=tmp_path,
        connection=cluster,
    )
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    job = cluster.job(study.trials[1].user_attrs["job_id"])
    assert (job.state, job.nodes) == ("CANCELLED", ())
