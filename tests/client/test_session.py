"""What the functions of `malletrain.client` do in one process."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from malletrain.client.commands import Command, CommandType, commands_after, put_command
from malletrain.client.job_context import JobContext, WorkerRank, read_job, read_rank
from malletrain.client.reporting import Process, SidecarProcess
from malletrain.client.ring import CLOSED, SAVE_ERROR, SAVE_FAILURES, SAVES, Ring, RingReader, create_ring
from malletrain.client.session import Client
from malletrain.client.warn_once import WarnOnce
from malletrain.v1 import monitor_pb2
from tests.support.waiting import wait_until

SECOND = 1_000_000_000


class Hostile:
    """Raises whatever is done with it."""

    def __index__(self) -> int:
        raise KeyError("no")

    def __float__(self) -> float:
        raise KeyError("no")

    def __str__(self) -> str:
        raise RuntimeError("not even text")


class OwnError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even text")


class Worse(Hostile):
    def __index__(self) -> int:
        raise OwnError


def anything(value: object) -> Any:
    """A value that the type checker lets pass as whatever is asked for."""
    return value


GARBAGE = [None, "32", 3.5, math.nan, -1, 2**41, 2**70, b"", [], {}, Hostile(), Worse(), object()]


class Bench:
    """A client whose clock, rank and sidecar the test decides; the sidecar is a process that ends at once."""

    def __init__(self, directory: Path, **environ: str) -> None:
        self.environ = {
            "MALLETRAIN_JOB_ID": "j1",
            "MALLETRAIN_JOB_DIR": str(directory),
            "MALLETRAIN_MONITOR": "127.0.0.1:1",
            **environ,
        }
        self.now = 1_000 * SECOND
        self.modules: dict[str, ModuleType] = {}
        self.rings: list[Ring] = []
        self.client = Client(self.environ, self.modules, lambda: self.now, self._start)

    def written(self) -> list[int]:
        """Records in each ring so far."""
        return [len(RingReader(ring.words).read()[0]) for ring in self.rings]

    def _start(self, job: JobContext, ring: Ring, reporter_id: str) -> Process:
        assert job.id == "j1"
        assert reporter_id
        if ring not in self.rings:
            self.rings.append(ring)
        return subprocess.Popen([sys.executable, "-c", ""])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def horovod(rank: int, size: int) -> ModuleType:
    module = ModuleType("horovod.torch")
    vars(module).update(is_initialized=lambda: True, rank=lambda: rank, size=lambda: size)
    return module


def test_importing_the_client_loads_the_standard_library_and_shared_names_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import malletrain.client; after = set(sys.modules) - before\n"
        "tops = {name.partition('.')[0] for name in after} - {'malletrain'} - sys.stdlib_module_names\n"
        "ours = {'.'.join(name.split('.')[:2]) for name in after if name.startswith('malletrain.')}\n"
        "print(sorted(tops | ours - {'malletrain.client', 'malletrain.common'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_outside_malletrain_nothing_happens(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def start(job: JobContext, ring: Ring, reporter_id: str) -> Process:
        raise AssertionError((job, ring, reporter_id))

    client = Client(environ={}, start=start)
    client.report(32)
    client.report(anything("garbage"))
    client.done({"loss": 1.0})
    assert client.current_job() is None
    assert (client.commands(), client.should_commit(), client.should_stop()) == ([], False, False)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


@pytest.mark.processes
def test_an_error_of_the_disk_that_leaves_a_save_is_noted(bench: Bench) -> None:
    def saves() -> tuple[int, int]:
        words = bench.rings[0].words
        return words[SAVE_FAILURES], words[SAVE_ERROR]

    def save(error: BaseException | None) -> None:
        with contextlib.suppress(BaseException), bench.client.phase("save"):
            if error is not None:
                raise error

    bench.client.report(32)
    save(None)
    assert bench.rings[0].words[SAVES] == 0, "it may go on in a thread"
    save(OSError(errno.ENOSPC, "full"))
    assert saves() == (1, errno.ENOSPC)
    for other in (SystemExit(0), ValueError("no error of a disk")):
        save(other)
        assert saves() == (1, errno.ENOSPC)
    save(RuntimeError("PytorchStreamWriter failed writing file"))
    assert saves() == (2, 0)
    save(None)
    assert saves() == (0, 0)
    with pytest.raises(OSError, match="full"), bench.client.phase("evaluate"):
        raise OSError(errno.ENOSPC, "full")
    assert saves() == (0, 0)


@pytest.mark.processes
def test_a_commit_is_due_from_time_to_time(bench: Bench) -> None:
    assert not bench.client.should_commit(), "before the first report nobody would be asked"
    bench.client.report(32)
    assert not bench.client.should_commit()
    bench.now += 61 * 10**9
    assert not bench.client.should_commit(every=None)
    assert bench.client.should_commit()
    assert not bench.client.should_commit()


@pytest.mark.parametrize("name", ["samples", "position", "workers"])
@pytest.mark.processes
def test_garbage_is_counted_and_said_once(bench: Bench, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    good = {"samples": 32, "position": 0, "workers": 1}
    garbage = [value for value in GARBAGE if value is not None or name == "samples"]
    if name == "position":
        garbage.remove(2**41)
    for value in garbage:
        bench.client.report(**{**good, name: anything(value)})
    assert bench.client.rejected == len(garbage)
    assert bench.written() == [0]
    bench.client.report(32)
    records, lost = RingReader(bench.rings[0].words).read()
    assert [record[2:] for record in records] == [(32, -1, 1)]
    assert lost == 0
    assert capfd.readouterr().err.count("malletrain: report():") == 1


@pytest.mark.processes
def test_numbers_of_other_types_are_taken(bench: Bench) -> None:
    class Number:
        def __index__(self) -> int:
            return 48

    bench.client.report(anything(Number()), anything(Number()), anything(Number()))
    assert RingReader(bench.rings[0].words).read()[0][0][2:] == (48, 48, 48)


def test_a_broken_environment_is_said_once_and_stops_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bench = Bench(tmp_path, MALLETRAIN_SLOTS_PER_NODE="many")
    for _ in range(3):
        bench.client.report(32)
        bench.now += 2 * SECOND
    bench.client.done()
    error = capfd.readouterr().err
    assert "MALLETRAIN_SLOTS_PER_NODE: expected a whole number, at least 1, got 'many'" in error
    assert error.count("batches can't be reported") == 1
    assert error.count("the completion could not be written") == 1


@pytest.mark.processes
def test_a_new_rank_is_found_at_a_refresh_or_soon(bench: Bench) -> None:
    bench.modules["horovod.torch"] = horovod(0, 4)
    bench.client.report(1)
    bench.modules["horovod.torch"] = horovod(1, 3)
    bench.client.refresh()
    bench.client.report(1)
    assert bench.written() == [1]
    assert bench.rings[0].words[CLOSED] == 1
    assert bench.client.sidecar_pid is None
    bench.modules["horovod.torch"] = horovod(0, 2)
    bench.client.report(1)
    bench.now += SECOND // 5
    bench.client.report(1)
    assert bench.written() == [1, 1]
    assert [ring.words[CLOSED] for ring in bench.rings] == [1, 0]
    assert RingReader(bench.rings[1].words).read()[0][0].workers == 2


@pytest.mark.processes
def test_a_clock_that_is_set_back_stops_nothing(bench: Bench) -> None:
    bench.modules["horovod.torch"] = horovod(0, 4)
    bench.client.report(1)
    bench.now -= 500 * SECOND
    bench.modules["horovod.torch"] = horovod(0, 2)
    bench.client.report(1)
    assert [record.workers for record in RingReader(bench.rings[0].words).read()[0]] == [4, 2]


@pytest.mark.processes
def test_a_job_that_begins_after_the_import_is_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    job = dict(bench.environ)
    bench.environ.clear()
    bench.client.report(1)
    bench.environ.update(job)
    bench.now += 2 * SECOND
    bench.client.report(1)
    assert bench.written() == [1]


def test_ranks_of_all_launchers() -> None:
    both = {"RANK": "2", "WORLD_SIZE": "8", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"}
    assert read_rank(both, {}) == WorkerRank(2, 8)
    assert read_rank({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"}, {}) == WorkerRank(1, 4)
    assert read_rank({"RANK": "x", "WORLD_SIZE": "-3"}, {}) == WorkerRank(0, 1)
    assert read_rank({"MALLETRAIN_WORLD_SIZE": "3"}, {}) == WorkerRank(0, 3), "one program for all its hosts"
    assert read_rank({"MALLETRAIN_WORLD_SIZE": "0"}, {}) == WorkerRank(0, 1)
    assert read_rank({**both, "MALLETRAIN_WORLD_SIZE": "3"}, {}) == WorkerRank(2, 8)
    assert read_rank(both, {"horovod.torch": horovod(5, 6)}) == WorkerRank(5, 6)
    assert read_rank(both, {"horovod.torch": ModuleType("horovod.torch")}) == WorkerRank(2, 8)


def test_the_job_in_the_environment(tmp_path: Path) -> None:
    environ = {
        "MALLETRAIN_JOB_ID": "j7",
        "MALLETRAIN_JOB_DIR": str(tmp_path),
        "MALLETRAIN_MONITOR": "127.0.0.1:50054",
        "MALLETRAIN_NODE": "n003",
        "MALLETRAIN_SLOTS_PER_NODE": "4",
        "MALLETRAIN_TARGET_SAMPLES": "1000000",
    }
    plain = JobContext("j7", tmp_path, tmp_path / "checkpoints", "127.0.0.1:50054", "n003", 4, 1_000_000)
    assert read_job(environ) == plain
    environ["MALLETRAIN_SUPERVISOR"] = "1:2"
    assert read_job(environ) == replace(plain, beside_release_0_1=True)
    assert read_job({**environ, "MALLETRAIN_LINEAGE": "3"}) == replace(plain, lineage="1:2/3")
    del environ["MALLETRAIN_JOB_DIR"]
    with pytest.raises(ValueError, match="MALLETRAIN_JOB_DIR: expected the job's folder, got nothing"):
        read_job(environ)


def test_done_writes_once_and_at_rank_0_only(tmp_path: Path) -> None:
    path = tmp_path / "completed.json"
    Bench(tmp_path, RANK="1").client.done({"accuracy": 0.5})
    assert not path.exists()
    bench = Bench(tmp_path)
    bench.client.done({"accuracy": 0.97, "epochs": 3}, samples=12_800)
    bench.client.done({"accuracy": 0.1})
    content = json.loads(path.read_text())
    assert content == {"samples": 12_800, "metrics": {"accuracy": 0.97, "epochs": 3.0}, "unix_seconds": 1000.0}
    assert [entry.name for entry in tmp_path.iterdir()] == ["completed.json"]


@pytest.mark.parametrize("samples", GARBAGE[1:5])
def test_done_is_not_lost_over_a_figure(bench: Bench, tmp_path: Path, samples: int) -> None:
    metrics: dict[str, Any] = {"good": 1.5, "nan": math.nan, "text": "no", "hostile": Hostile(), "none": None}
    bench.client.done(metrics, samples=samples)
    content = json.loads((tmp_path / "completed.json").read_text())
    assert (content["samples"], content["metrics"]) == (None, {"good": 1.5})


def test_done_with_no_metrics_at_all(bench: Bench, tmp_path: Path) -> None:
    bench.client.done(anything("accuracy"))
    assert json.loads((tmp_path / "completed.json").read_text())["metrics"] == {}


def test_done_in_a_folder_that_is_gone_raises_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Bench(tmp_path / "gone").client.done()
    assert "the completion could not be written" in capfd.readouterr().err


def test_command_types_are_those_of_the_contract() -> None:
    contract = {
        name.removeprefix("COMMAND_TYPE_"): number for name, number in monitor_pb2.CommandType.items() if number
    }
    assert {kind.name: int(kind) for kind in CommandType} == contract


def test_the_newest_64_commands_are_kept() -> None:
    ring = create_ring(4)
    sent = [Command(f"{number}-{'é' * 200}", CommandType.COMMIT, number) for number in range(100)]
    for command in sent:
        put_command(ring, command)
    found, newest = commands_after(ring, 0)
    assert newest == 100
    assert [command.id.partition("-")[0] for command in found] == [str(number) for number in range(36, 100)]
    assert all(len(command.id.encode()) <= 96 for command in found)
    assert [command.nodes for command in found] == list(range(36, 100))
    assert commands_after(ring, newest) == ([], 100)


def test_a_command_of_a_later_version_is_passed_over() -> None:
    ring = create_ring(4)
    for command in (Command("1", 99), Command("2", CommandType.STOP)):  # the sidecar is perhaps of that version
        put_command(ring, command)
    assert commands_after(ring, 0) == ([Command("2", CommandType.STOP)], 2)


@pytest.mark.processes
def test_a_sidecar_is_started_again_after_ten_seconds_at_the_earliest() -> None:
    started: list[Process] = []

    def start() -> Process:
        started.append(subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))
        return started[-1]

    sidecar = SidecarProcess(start, WarnOnce())
    sidecar.keep_running(100 * SECOND)
    wait_until(lambda: started[0].poll() == 3)
    sidecar.keep_running(109 * SECOND)
    assert sidecar.pid is None
    sidecar.keep_running(110 * SECOND)
    assert [process.pid for process in started][1:] == [sidecar.pid]
    started[1].wait()


def test_a_start_that_fails_is_said_once_and_tried_again_later(capfd: pytest.CaptureFixture[str]) -> None:
    tries = 0

    def start() -> Process:
        nonlocal tries
        tries += 1
        raise OSError("no more processes")

    sidecar = SidecarProcess(start, WarnOnce())
    for second in range(100, 121):
        sidecar.keep_running(second * SECOND)
    assert tries == 3
    assert capfd.readouterr().err.count("no more processes") == 1
