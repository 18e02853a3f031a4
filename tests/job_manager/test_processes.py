"""Processes are told apart by pid and start time, and their files are read whole."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from malletrain.common.accounts import account_named
from malletrain.common.launch_file import Launch, launch_document
from malletrain.common.processes import ProcessId, identify
from malletrain.job_manager.launching import folder as job_folder
from malletrain.job_manager.launching.folder import JobFolder, WrittenOutcome, open_socket, socket_path
from malletrain.job_manager.launching.launch_settings import MonitorAddress
from malletrain.job_manager.launching.processes import ProcessSearch, sweep, until_end, wait_for_end
from malletrain.job_manager.launching.starting import search_path, supervisor_environment, worker_environment
from malletrain.job_manager.log_reader import LogReader
from malletrain.job_manager.logs import tail
from malletrain.job_manager.machine.stimuli import Completion, Outcome
from malletrain.runtime.job_values import parse_value
from tests.support.builders import job_spec
from tests.support.waiting import wait_until_async


async def test_waiting_for_the_end_of_a_process() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = identify(child.pid)
    assert process is not None
    await wait_for_end(ProcessId(child.pid, process.start_time + 1))
    waiting = asyncio.ensure_future(wait_for_end(process))
    process.kill()
    await asyncio.wait_for(waiting, 10)
    assert not process.alive(), "it waits to be reaped, and counts as ended"
    child.wait()
    process.kill()
    await wait_for_end(process)


@pytest.mark.parametrize("search", [None, ProcessSearch()])
async def test_sweep_ends_what_matches_and_nothing_else(search: ProcessSearch | None) -> None:
    mine = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"], env={"MARK": "mine", "PATH": os.defpath})
    other = subprocess.Popen(["sleep", "60"], env={"MARK": "other", "PATH": os.defpath})
    assert await sweep(lambda found: found.get("MARK") == "mine", search=search) >= 1
    assert mine.wait(10) != 0
    assert other.poll() is None
    other.kill()
    other.wait()


def test_environment_of_workers_and_supervisors() -> None:
    own = {"HOME": "/home/u", "PATH": "/bin", "MALLETRAIN_STATE_DIR": "/s", "A": "0"}
    worker = worker_environment(
        "j000001",
        Path("/s/jobs/j000001"),
        job_spec(environment={"A": "1"}, burst_buffer_gb=2000, nodes_per_replica=2),
        4,
        MonitorAddress("localhost:1"),
    )
    found = supervisor_environment(own, worker, 3, "/venv/bin/python")
    assert found == {
        "HOME": "/home/u",
        "PATH": "/venv/bin:/bin",
        "A": "1",
        "MALLETRAIN_JOB_ID": "j000001",
        "MALLETRAIN_JOB_DIR": "/s/jobs/j000001",
        "MALLETRAIN_MONITOR": "localhost:1",
        "MALLETRAIN_SLOTS_PER_NODE": "4",
        "MALLETRAIN_NODES_PER_REPLICA": "2",
        "MALLETRAIN_BURST_BUFFER_GB": "2000",
        "MALLETRAIN_TARGET_SAMPLES": "0",
        "MALLETRAIN_INCARNATION": "3",
    }
    assert search_path(own, "python3") == "/bin"


@pytest.mark.parametrize(
    ("value", "own", "told"),
    [("linear", "", None), ("goodput", "", "1"), ("goodput", "0", "0"), ("linear", "1", "1")],
)
def test_a_job_whose_goodput_counts_measures_its_noise_scale_unless_its_user_says_otherwise(
    value: str, own: str, told: str | None
) -> None:
    chosen = {"MALLETRAIN_GRADIENT_NOISE": own} if own else {}
    spec = job_spec(environment=chosen, value=parse_value(value))
    found = worker_environment("j000001", Path("/s/jobs/j000001"), spec, 1, MonitorAddress("localhost:1"))
    assert found.get("MALLETRAIN_GRADIENT_NOISE") == told


def test_socket_paths_fit_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="mt") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        monkeypatch.setattr(job_folder, "RUN_FOLDER", Path(short))
        state_dir = Path(short) / "state"
        assert socket_path(state_dir, "j000001", 1) == state_dir / "run" / "j000001.1.sock"
        path = socket_path(tmp_path / ("d" * 100), "j000001", 2)
        assert len(str(path)) < 100
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path != socket_path(tmp_path / ("e" * 100), "j000001", 2)


def nothing_in(folder: JobFolder) -> bool:
    return all(
        found is None for found in (folder.launched(), folder.supervisor(), folder.outcome(), folder.completion())
    )


def test_files_of_a_job(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    folder.prepare()
    assert nothing_in(folder)
    launch = Launch("j000001", "command", ("true",), "/", {}, 1, "socket", 1, incarnation=4)
    folder.write_launch(launch)
    assert folder.launched() == launch_document(launch)
    (tmp_path / "outcome.json").write_text('{"outcome": "FAILED", "message": "rank 0 died"}')
    assert folder.outcome() == WrittenOutcome(Outcome.FAILED, "rank 0 died")
    (tmp_path / "supervisor.json").write_text('{"pid": 5, "start_time": 6, "socket": "s"}')
    assert folder.supervisor() == ProcessId(5, 6)
    folder.prepare()
    assert nothing_in(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"samples": 5, "metrics": {"loss": 1, "name": "x"}}', Completion(5, {"loss": 1.0})),
        ('{"samples": null, "metrics": null}', Completion()),
        ("", Completion()),
        ("[]", Completion()),
    ],
)
def test_the_completion_file_counts_whatever_is_in_it(tmp_path: Path, text: str, expected: Completion) -> None:
    (tmp_path / "completed.json").write_text(text)
    assert JobFolder(tmp_path).completion() == expected


def texts(reader: LogReader) -> list[str]:
    return [line.text for line in reader.read()]


def test_logs_of_several_workers_are_read_as_one(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "supervisor.log").write_text("no module named horovod\n")
    assert tail(JobFolder(tmp_path), 5) == ["supervisor | no module named horovod"]
    (logs / "n.1.0.log").write_bytes(b"a\r\nb\nhalf")
    (logs / "n2.1.log").write_bytes(b"\xff\n")
    os.utime(logs / "n2.1.log", (1, 1))
    reader = LogReader(JobFolder(tmp_path))
    assert texts(reader) == ["n2 | \ufffd", "n.1 | a", "n.1 | b"]
    with (logs / "n.1.0.log").open("a") as file:
        file.write(" line\n")
    assert texts(reader) == ["n.1 | half line"]
    assert reader.read(to_the_end=True) == []
    assert tail(JobFolder(tmp_path), 2) == ["n.1 | b", "n.1 | half line"]
    assert tail(JobFolder(tmp_path), 4)[0] == "n2 | \ufffd"


def test_what_a_job_wrote_can_be_stored_and_sent_whatever_it_is(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path)
    (tmp_path / "outcome.json").write_text(r'{"outcome": "FAILED", "message": "\ud800"}')
    (tmp_path / "completed.json").write_text(r'{"metrics": {"\ud800": 1.0, "' + "x" * 1000 + '": 2}}')
    (tmp_path / "logs").mkdir()
    os.close(os.open(os.fsencode(tmp_path / "logs") + b"/\xff.0.log", os.O_CREAT | os.O_WRONLY))
    (tmp_path / "logs" / "n1.0.log").write_text("x\n")
    outcome, completion = folder.outcome(), folder.completion()
    assert outcome is not None
    assert completion is not None
    for text in (outcome.message, *completion.metrics, *tail(folder, 5), *texts(LogReader(folder))):
        assert len(text.encode()) < 1000


@pytest.mark.parametrize("content", ['{"outcome": "SOMETHING"}', "[" * 50_000, '{"outcome": "FAILED"' + " " * 100_000])
def test_an_outcome_that_makes_no_sense_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "outcome.json").write_text(content)
    assert JobFolder(tmp_path).outcome() is None


def test_links_in_a_jobs_folder_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    (folder / "logs").mkdir(parents=True)
    (tmp_path / "other.json").write_text('{"outcome": "EXITED"}')
    (folder / "outcome.json").symlink_to(tmp_path / "other.json")
    (folder / "logs" / "a.0.log").symlink_to("/proc/self/maps")
    assert JobFolder(folder).outcome() is None
    assert LogReader(JobFolder(folder)).read() == []
    assert tail(JobFolder(folder), 5) == []


def test_a_long_log_is_read_in_parts(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    line = "x" * 1023 + "\n"
    (tmp_path / "logs" / "n1.0.log").write_text(line * 6000 + "y" * 200_000)
    reader, parts = LogReader(JobFolder(tmp_path)), []
    while part := reader.read(to_the_end=True):
        parts.append(part)
    assert len(parts) > 1
    lines = [line.text for part in parts for line in part]
    assert [text for text in lines if "x" in text] == ["n1 | " + line.strip()] * 6000
    assert "".join(text.removeprefix("n1 | ") for text in lines if "y" in text) == "y" * 200_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
def test_only_a_socket_of_the_owner_is_connected_to(tmp_path: Path) -> None:
    account = account_named("www-data")
    path = tmp_path / "s"
    with pytest.raises(FileNotFoundError):
        open_socket(path, account)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "theirs"))
        path.symlink_to(tmp_path / "theirs")
        with pytest.raises(OSError, match="not a socket of www-data"):
            open_socket(path, account)
        path.unlink()
        (tmp_path / "theirs").rename(path)
        with pytest.raises(OSError, match="not a socket of www-data"):
            open_socket(path, account)
        os.chown(path, account.user_id, account.group_id)
        os.close(open_socket(path, account))


async def test_a_stream_that_goes_on_waiting_ends_with_its_process() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = identify(child.pid)
    assert process is not None
    taken: list[int] = []

    async def endless() -> AsyncIterator[int]:
        yield 1
        yield 2
        await asyncio.Event().wait()

    async def take() -> None:
        async for item in until_end(endless(), process):
            taken.append(item)

    taking = asyncio.ensure_future(take())
    await wait_until_async(lambda: taken == [1, 2])
    assert not taking.done()
    child.kill()
    await asyncio.to_thread(child.wait)
    await asyncio.wait_for(taking, 10)


async def test_a_stream_that_ends_by_itself_is_read_to_its_end() -> None:
    child = subprocess.Popen(["true"])
    process = identify(child.pid) or ProcessId(child.pid, 0)
    child.wait()

    async def last_words() -> AsyncIterator[str]:
        yield "a"
        await asyncio.sleep(0.05)
        yield "b"

    assert [word async for word in until_end(last_words(), process)] == ["a", "b"]
