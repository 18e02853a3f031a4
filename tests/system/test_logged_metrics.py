"""A real job logs its loss over a rescale and a restart of Monitor: the command and Python show all of it."""

from __future__ import annotations

import csv
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import malletrain
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300)]

SECONDS = 60.0
SCRIPT = str(Path(__file__).with_name("scripts") / "logging_loss.py")
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
trainer_python = "{sys.executable}"
restart_backoff_seconds = 0.1
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Deployment]:
    with deployed(tmp_path / "state", SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 2, 30, "two idle nodes")
        yield deployment


def test_what_a_job_logs_is_shown_over_a_rescale_and_a_restart_of_monitor(system: Deployment, tmp_path: Path) -> None:
    options = ("--name", "logger", "--backend", "command", "--min", "1", "--max", "2")
    submitted = system.command("submit", *options, "--", "python", SCRIPT, str(tmp_path))
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    with malletrain.connect(state_dir=system.folder) as connection:
        job = connection.job(job_id)
        wait_until(lambda: len(job.nodes) == 2, SECONDS, "the job on two nodes")
        wait_until(lambda: "loss" in job.metric_histories(), SECONDS, "a history")
        assert system.command("drain", "n2").returncode == 0
        wait_until(lambda: job.nodes == ("n1",), SECONDS, "the job on one node")
        before = job.metric_history("loss")
        wait_until(lambda: job.metric_history("loss").steps[-1] > before.steps[-1] + 100, SECONDS, "more after that")
        os.kill(system.pids()["monitor"], signal.SIGKILL)
        resumed = job.refresh().samples // 10

        def goes_on() -> bool:
            try:
                return job.metric_history("loss").steps[-1] > max(resumed, before.steps[-1] + 100) + 50
            except malletrain.UnavailableError:
                return False

        wait_until(goes_on, SECONDS, "more after Monitor's restart")
        (tmp_path / "go").touch()
        assert job.wait(SECONDS) == "COMPLETED"
        last = int((tmp_path / "count").read_text())
        wait_until(lambda: job.metric_history("loss").steps[-1] == last, SECONDS, "the last value")
        history, rate = job.metric_history("loss"), job.metric_histories()["rate"]
        assert set(job.metric_histories()) == {"loss", "rate"}
        with pytest.raises(malletrain.NotFoundError, match="no metric 'other'"):
            job.metric_history("other")
    assert (history.steps[0], history.values[0], history.values[-1]) == (1, 1.0, 1 / last)
    assert max(history.most) == 1.0, "of rank 0 alone"
    assert min(history.least) == 1 / last
    assert last - 5 <= sum(history.counts) <= last + 20, "each once; what a killed worker had not handed on may be less"
    assert abs(rate.steps[-1] - 10 * last) <= 20, "samples, where the script gives no step"
    shown = system.command("job", job_id).stdout
    assert f"loss  {1 / last:g} at step {last:,}" in shown
    assert "█" in shown
    table = system.command("metrics", "logger", "--name", "loss", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(table.stdout)))
    assert [int(row["step"]) for row in rows] == list(history.steps)
    assert system.json("metrics", job_id)[-1]["metric"] == "rate"
    refused = system.command("metrics", job_id, "--name", "other")
    assert refused.returncode != 0
    assert "has logged no metric" in refused.stderr
