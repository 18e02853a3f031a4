"""Jobs from Python on real services: submitted, waited for, followed, cancelled, and across a kill of JobManager."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import malletrain
from malletrain import LocalCluster
from malletrain.api import local
from malletrain.api.connection import default_connection
from malletrain.common.addresses import free_loopback_ports
from tests.support.waiting import wait_until
from tests.system.deployment import run_command, service_pids

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

SETTINGS = {"job_manager.standby_memory_mib": "0", "validate_state": "1"}
PATIENCE = 100.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with malletrain.local(nodes=2, settings=SETTINGS) as running:
        yield running


def up_pid(cluster: LocalCluster) -> int:
    """The process that looks after the services of a cluster: the child of this one that works in its folder."""
    here = str(cluster.folder)
    (found,) = (child.pid for child in psutil.Process().children() if here in " ".join(child.cmdline()))
    return found


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def until_exists(path: Path) -> list[str]:
    """A program that prints a line, and ends when a file is there."""
    return python(
        f"import os, time; print('begun', flush=True)\nwhile not os.path.exists({str(path)!r}): time.sleep(0.1)"
    )


def test_a_job_from_submission_to_end(cluster: LocalCluster, tmp_path: Path) -> None:
    assert default_connection() is cluster
    end = tmp_path / "end"
    job = malletrain.submit(until_exists(end), name="first", backend="command", workdir=tmp_path)
    other = malletrain.submit(until_exists(tmp_path / "never"), backend="command", workdir=tmp_path)
    assert (job.name, job.state.final, job.owner) == ("first", False, cluster.user)
    with pytest.raises(TimeoutError, match=job.id):
        job.wait(0)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(job.logs(follow=True)))
    reader.start()
    wait_until(lambda: any("begun" in line for line in job.logs()), PATIENCE, "the first line")
    assert [found.id for found in malletrain.jobs(state=["running", "starting"]) if found == job] == [job.id]
    end.touch()
    assert asyncio.run(job.wait_async()) == "COMPLETED" == job.wait()
    reader.join(PATIENCE)
    assert lines == ["n1 | begun"] or lines == ["n2 | begun"]
    assert other.cancel().wait(PATIENCE) == "CANCELLED"
    shown = malletrain.jobs(mine=True)._repr_html_()
    assert all(text in shown for text in (job.id, "first", "CANCELLED", other.id))
    assert "COMPLETED" in job._repr_html_()
    malletrain.jobs().watch()  # all have ended: at once
    assert malletrain.job(job.id) == job


def test_errors_are_exceptions_with_the_field(cluster: LocalCluster) -> None:
    with pytest.raises(malletrain.InvalidInputError) as caught:
        cluster.submit(["python", "train.py"], min_nodes=3, max_nodes=2)
    assert caught.value.field == "min_nodes"
    with pytest.raises(malletrain.InvalidInputError) as caught:
        cluster.jobs(state="done")
    assert caught.value.field == "state"
    with pytest.raises(malletrain.NotFoundError, match="j999999"):
        malletrain.job("j999999")


def test_a_job_file_is_submitted_and_printed_back(cluster: LocalCluster, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('command = ["true"]\nname = "of a file"\nmin = 2\nmax = 2\nbackend = "command"\nenv.SEED = "1"\n')
    words = ["submit", str(file), "--name", "of the line", "--env", "OTHER=2", "--weight", "2"]
    done = run_command(*words, cwd=cluster.folder, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    shown = run_command("job", job_id, "--toml", cwd=cluster.folder, timeout=PATIENCE)
    found = tomllib.loads(shown.stdout)
    assert (found["name"], found["min"], found["max"], found["weight"]) == ("of the line", 2, 2, 2)
    assert found["env"] == {"SEED": "1", "OTHER": "2"}
    malletrain.job(job_id).cancel()


@pytest.mark.long
def test_a_wait_goes_on_when_jobmanager_is_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = cluster.submit(until_exists(end), backend="command", workdir=tmp_path)
    found: list[str] = []
    waiter = threading.Thread(target=lambda: found.append(job.wait()))
    waiter.start()
    wait_until(lambda: job.state == "RUNNING", PATIENCE, "a running job")
    before = service_pids(up_pid(cluster))["job_manager"]
    os.kill(before, signal.SIGKILL)
    assert job.state == "RUNNING"  # asked of the next JobManager
    later = cluster.submit(python("print(1)"), backend="command", workdir=tmp_path)
    assert service_pids(up_pid(cluster))["job_manager"] != before
    assert not found
    end.touch()
    waiter.join(PATIENCE)
    assert found == ["COMPLETED"]
    assert later.wait(PATIENCE) == "COMPLETED"


def processes_of(folder: str) -> list[int]:
    """Processes whose command or environment names a state folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if folder in " ".join(process.cmdline()) or folder in " ".join(process.environ().values()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.long
def test_nothing_is_left_when_the_process_with_the_cluster_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    code = (
        "import malletrain, sys, time\n"
        f"cluster = malletrain.local(nodes=2, folder={str(folder)!r}, settings={SETTINGS!r})\n"
        f"job = malletrain.submit([sys.executable, '-c', 'import time; time.sleep(600)'], workdir={str(tmp_path)!r})\n"
        "while job.state != 'RUNNING': time.sleep(0.1)\n"
        "print('runs', flush=True)\n"
        "job.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as notebook:
        assert notebook.stdout is not None
        assert notebook.stdout.readline() == "runs\n"
        assert len(processes_of(str(folder))) >= 7  # up, five services, supervisor, worker
        notebook.kill()
    wait_until(lambda: processes_of(str(folder)) == [], PATIENCE, "no process of the cluster")


@pytest.mark.long
def test_an_error_in_the_block_ends_the_cluster() -> None:
    folder = ""
    with pytest.raises(ZeroDivisionError), malletrain.local(nodes=1, settings=SETTINGS) as running:  # noqa: PT012
        folder = str(running.folder)
        assert processes_of(folder)
        1 / 0  # noqa: B018
    assert processes_of(folder) == []
    assert not Path(folder).exists()
    with pytest.raises(malletrain.UnavailableError, match="closed"):
        running.jobs()


@pytest.mark.long
def test_a_port_that_another_program_takes_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [*free_loopback_ports(4), taken.getsockname()[1]]
        tries = iter([ports, free_loopback_ports(5)])
        monkeypatch.setattr(local, "free_loopback_ports", lambda count: next(tries)[:count])
        with malletrain.local(nodes=1, settings=SETTINGS) as running:
            assert running.user


def test_services_that_do_not_start_say_why() -> None:
    with pytest.raises(malletrain.MalleTrainError, match=r"scavenger\.source"):
        malletrain.local(nodes=1, settings={"scavenger.source": "nowhere"})
    with pytest.raises(malletrain.InvalidInputError, match="nodes"):
        malletrain.local(nodes=0)


@pytest.mark.long
def test_an_array_is_submitted_listed_and_cancelled_as_one(cluster: LocalCluster, tmp_path: Path) -> None:
    jobs = malletrain.submit_array(
        until_exists(tmp_path / "{name}"), {"name": ["a", "b", "c"]}, at_once=1, backend="command", workdir=tmp_path
    )
    array = jobs[0].array_id
    assert [job.parameters["name"] for job in jobs] == ["a", "b", "c"]
    wait_until(lambda: jobs[0].state == "RUNNING", PATIENCE, "the first job")
    os.kill(service_pids(up_pid(cluster))["job_manager"], signal.SIGKILL)
    (tmp_path / "a").touch()
    assert jobs[0].wait(PATIENCE) == "COMPLETED"
    wait_until(lambda: jobs[1].state == "RUNNING", PATIENCE, "the second job")
    assert jobs[2].state == "QUEUED"
    shown = run_command("jobs", "--array", array, cwd=cluster.folder, timeout=PATIENCE)
    assert shown.stdout.count(f"\t{array}\t") == 3
    assert "name=b" in shown.stdout
    ended = run_command("cancel", array, cwd=cluster.folder, timeout=PATIENCE)
    assert [line.split()[0] for line in ended.stdout.splitlines()] == [jobs[1].id, jobs[2].id]
    assert jobs.wait(PATIENCE) == ["COMPLETED", "CANCELLED", "CANCELLED"]
    words = ["submit", "--array", "n=1,2 %1", "--backend", "command", "--", sys.executable, "-c", "print({n})"]
    done = run_command(*words, cwd=cluster.folder, timeout=PATIENCE)
    assert done.stdout.strip().startswith("a0"), done.stderr
    with pytest.raises(malletrain.InvalidInputError) as caught:
        malletrain.submit_array(["true"], {"lr": [1]})
    assert caught.value.field == "parameters"


@pytest.mark.long
def test_jobs_wait_for_others_also_while_jobmanager_is_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    end = tmp_path / "end"
    order = python(f"print(open({str(tmp_path / 'model')!r}).read())")
    first = cluster.submit(until_exists(end), name="prepare", backend="command", workdir=tmp_path)
    words = ["submit", "--after-ok", "prepare", "--name", "train", "--backend", "command", "--workdir", str(tmp_path)]
    made = python(f"open({str(tmp_path / 'model')!r}, 'w').write('made')")
    done = run_command(*words, "--", *made, cwd=cluster.folder, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    train = malletrain.job(done.stdout.strip())
    last = malletrain.submit(order, after=[train], after_ok="prepare", backend="command", workdir=tmp_path)
    array = malletrain.submit_array(
        python("print({n})"), {"n": [1, 2]}, after_ok=first, backend="command", workdir=tmp_path
    )
    file = tmp_path / "job.toml"
    file.write_text(f'command = ["true"]\nbackend = "command"\nafter = ["{array[0].array_id}"]\nname = "of a file"\n')
    of_file = run_command("submit", str(file), cwd=cluster.folder, timeout=PATIENCE)
    assert of_file.returncode == 0, of_file.stderr
    assert (train.state, train.reason) == ("QUEUED", f"waits for {first.id} to complete")
    assert last.reason == f"waits for {train.id} to end, and for {first.id} to complete"
    for verb in (("explain", train.id), ("job", train.id), ("jobs", "-o", "wide")):
        assert f"waits for {first.id}" in run_command(*verb, cwd=cluster.folder, timeout=PATIENCE).stdout
    wait_until(lambda: first.state == "RUNNING", PATIENCE, "the first job")
    up = up_pid(cluster)
    before = service_pids(up)["job_manager"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: service_pids(up).get("job_manager", before) != before, PATIENCE, "another JobManager")
    assert {job.state for job in (train, last, *array)} == {"QUEUED"}
    end.touch()
    assert [job.wait(PATIENCE) for job in (first, train, last, *array)] == ["COMPLETED"] * 5
    assert any("made" in line for line in last.logs())
    assert malletrain.job(of_file.stdout.strip()).wait(PATIENCE) == "COMPLETED"


@pytest.mark.long
def test_a_failure_cancels_what_was_to_wait_for_completion(cluster: LocalCluster, tmp_path: Path) -> None:
    end = tmp_path / "end"
    fails = until_exists(end)
    fails[-1] += "\nraise SystemExit(3)"
    first = cluster.submit(fails, backend="command", max_restarts=0, workdir=tmp_path)
    never = cluster.submit(["true"], after_ok=[first], backend="command", workdir=tmp_path)
    anyway = cluster.submit(["true"], after=[first, never], backend="command", workdir=tmp_path)
    end.touch()
    assert first.wait(PATIENCE) == "FAILED"
    assert never.wait(PATIENCE) == "CANCELLED"
    assert never.reason.startswith(f"cancelled: {first.id} ended FAILED")
    assert anyway.wait(PATIENCE) == "COMPLETED"
    for options, field in (
        ({"after_ok": [first]}, "after_ok[0]"),
        ({"after": ["j999999"]}, "after[0]"),
        ({"after": ["nobody's"]}, "after"),
    ):
        with pytest.raises(malletrain.InvalidInputError) as caught:
            cluster.submit(["true"], backend="command", **options)
        assert caught.value.field == field
    refused = run_command("submit", "--after", "nobodys", "--", "true", cwd=cluster.folder, timeout=PATIENCE)
    assert "--after: expected identifiers of jobs or arrays, or names of jobs, got 'nobodys'" in refused.stderr
    refused = run_command("submit", "--after-ok", first.id, "--", "true", cwd=cluster.folder, timeout=PATIENCE)
    assert f"{first.id} is FAILED" in refused.stderr
