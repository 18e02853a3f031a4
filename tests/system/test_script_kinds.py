"""Scripts that say nothing of how they are run, and wrappers around them: each runs as what it is, and is RUNNING."""

from __future__ import annotations

import importlib.util
import sys
import venv
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed
from tests.system.test_one_line import SCRIPTS, STOCK, check_completed_once, wait_end

pytestmark = [pytest.mark.long, pytest.mark.system, pytest.mark.timeout(600)]

SECONDS = 180.0
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1", "n2", "n3"]
debounce_seconds = 0
[job_manager]
trainer_python = "{sys.executable}"
restart_backoff_seconds = 0.1
rescale_deadline_seconds = 150
"""
ROOT = Path(__file__).parents[2]
PLAIN_HOROVOD = """
import sys
import horovod.torch as hvd
import torch
from malletrain.client import report
hvd.init()
print(f"rank {hvd.rank()} of {hvd.size()}", flush=True)
for step in range(int(sys.argv[1])):
    hvd.allreduce(torch.ones(1))
    report(8 * hvd.size())
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("kinds"), SETTINGS, seconds=SECONDS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 3, SECONDS, "three idle nodes")
        yield deployment


def submit(system: Deployment, *words: str) -> tuple[str, str]:
    """A job's identifier, and what is said of it."""
    done = system.command("submit", "--profile", "never", *words, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def output(system: Deployment, job_id: str) -> list[str]:
    """What all workers of a job have written."""
    folder = system.folder / "jobs" / job_id / "logs"
    return [line for path in sorted(folder.glob("n*.log")) for line in path.read_text().splitlines()]


def test_a_plain_loop_without_options_is_one_process_on_one_node(system: Deployment) -> None:
    job_id, said = submit(system, "--", "python", str(SCRIPTS / "saving.py"), "100", "0.02")
    assert said.startswith("saving.py is a single process, so it runs on one node")
    job = wait_end(system, job_id)
    check_completed_once(job, 800)
    assert output(system, job_id) == ["begins at 0"]
    reasons = [event["reason"] for event in job["events"]]
    assert "trains on 1 node" in reasons
    assert "saving.py is a single process" in " ".join(system.command("job", job_id, timeout=SECONDS).stdout.split())


def test_a_script_whose_environment_has_neither_torch_nor_grpc(system: Deployment, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    (packages,) = (tmp_path / "bare").glob("lib/python3*/site-packages")
    packages.joinpath("malletrain.pth").write_text("".join(f"{ROOT / name}\n" for name in ("clients", "services")))
    job_id, _ = submit(system, "--", str(tmp_path / "bare/bin/python"), str(SCRIPTS / "saving.py"), "100", "0.02")
    check_completed_once(wait_end(system, job_id), 800)


def test_one_process_gives_other_nodes_back_whoever_has_submitted_it(system: Deployment, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "saving.py"), "400", "0.05"]
    asked = resources_pb2.JobSpec(
        name="loop", command=command, working_directory=str(tmp_path), min_nodes=1, max_nodes=3
    )
    with closing(system.stubs) as stubs:
        request = job_manager_pb2.SubmitJobsRequest(specs=[asked])
        job_id = stubs.job_manager.SubmitJobs(request, timeout=30).jobs[0].id
    wait_until(lambda: system.job(job_id).spec.max_nodes == 1, SECONDS, "its program to be known")
    wait_until(lambda: len(system.job(job_id).commanded_nodes) == 1, SECONDS, "the other nodes to be given back")
    job = wait_end(system, job_id)
    assert job["state"] == "COMPLETED"
    assert int(job["samples"]) == 400 * 8
    assert len({line for line in output(system, job_id) if line == "begins at 0"}) == 1


def test_what_a_wrapper_has_started_saves_when_its_node_is_drained(system: Deployment) -> None:
    job_id, said = submit(system, "--", "bash", str(SCRIPTS / "saving.sh"), "400", "0.05")
    assert "saving.sh is run once, on one node" in said
    wait_until(lambda: system.job(job_id).samples > 100, SECONDS, "samples")
    node, *_ = system.job(job_id).commanded_nodes
    assert system.command("drain", node, timeout=SECONDS).returncode == 0
    job = wait_end(system, job_id)
    assert system.command("resume", node, timeout=SECONDS).returncode == 0
    assert job["state"] == "COMPLETED"
    written = output(system, job_id)
    saved = [line.split()[1] for line in written if line.startswith("saved")]
    assert len(saved) == 1
    assert sorted(line for line in written if line.startswith("begins")) == sorted(
        ["begins at 0", f"begins at {saved[0]}"]
    )
    assert written.count("the wrapper's last line") == 2
    assert int(job["samples"]) == 400 * 8


def test_a_shell_under_torchrun_runs_on_each_node(system: Deployment) -> None:
    script = 'echo "rank $RANK of $WORLD_SIZE"; sleep 2'
    job_id, _ = submit(system, "--backend", "torchrun", "--min", "2", "--max", "2", "--", "sh", "-c", script)
    job = wait_end(system, job_id)
    check_completed_once(job, 0)
    assert sorted(output(system, job_id)) == ["rank 0 of 2", "rank 1 of 2"]
    assert "trains on 2 nodes" in [event["reason"] for event in job["events"]]


@pytest.mark.horovod
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod in this environment")
@pytest.mark.parametrize("options", [(), ("--backend", "horovod")], ids=["by default", "named"])
def test_horovod_without_its_elastic_part_is_one_world(
    system: Deployment, tmp_path: Path, options: tuple[str, ...]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN_HOROVOD)
    job_id, said = submit(system, *options, "--min", "2", "--max", "2", "--", "python", str(script), "300")
    assert "without hvd.elastic.run" in said
    job = wait_end(system, job_id)
    check_completed_once(job, 300 * 8 * 2)
    assert sorted(output(system, job_id)) == ["rank 0 of 2", "rank 1 of 2"]


@pytest.mark.horovod
@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="needs Horovod in this environment")
def test_of_elastic_horovod_nothing_is_said(system: Deployment) -> None:
    job_id, said = submit(system, "--max", "2", "--", "python", str(STOCK), "--epochs", "1", "--batches-per-epoch", "9")
    assert not said
    assert wait_end(system, job_id)["state"] == "COMPLETED"
