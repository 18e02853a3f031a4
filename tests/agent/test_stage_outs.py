"""Agents copy checkpoints that workers have left in memory, with the rights of the workers' user and within limits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.agent.stage_outs import StageOuts, has_room
from malletrain.client.checksum import verify_checksum
from malletrain.client.part_files import part_path, parts_folder
from malletrain.common.accounts import account_named
from malletrain.common.processes import read_status
from malletrain.common.stage_out import StagedCheckpoint, StageOutTerms, write_mark
from malletrain.v1 import agent_pb2 as pb
from tests.agent.running import RunningAgent
from tests.agent.test_job_owner import ANN, Session, job_certificate, needs_root, own_folder, start
from tests.support.everybody import folder_of_everybody, python_of_everybody
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

CONTENT = b"weights" * 1_000_000
"""Of several pieces."""
TERMS = StageOutTerms(30.0, 64 << 20)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def stage_outs(said: list[str]) -> Iterator[StageOuts]:
    stage_outs = StageOuts(TERMS, said.append)
    yield stage_outs
    stage_outs.close()


def take(stage_outs: StageOuts, job: Path, staged: StagedCheckpoint, *, content: bytes = CONTENT) -> None:
    """Have the memory of a worker that has gone looked at."""
    (job / "logs").mkdir(exist_ok=True)
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    os.pwrite(descriptor, content, 0)
    os.pwrite(descriptor, staged.ending(), len(content))
    stage_outs.take(descriptor, str(job), None)
    os.close(descriptor)


def wait_for(stage_outs: StageOuts) -> None:
    def ended() -> bool:
        stage_outs.poll(time.monotonic())
        return not stage_outs.under_way

    wait_until(ended, 30, "the end of copying")


def test_a_whole_checkpoint_gets_its_place_and_its_checksum(
    tmp_path: Path, stage_outs: StageOuts, said: list[str]
) -> None:
    staged = StagedCheckpoint(len(CONTENT), 120)
    (tmp_path / "checkpoints").mkdir()
    older = tmp_path / "checkpoints" / "samples-000000000000060.pt"
    older.write_bytes(b"older")
    write_mark(tmp_path, staged, 30.0)
    take(stage_outs, tmp_path, staged)
    wait_for(stage_outs)
    path = tmp_path / "checkpoints" / "samples-000000000000120.pt"
    assert sorted(path.parent.iterdir()) == [older, path], said
    assert path.read_bytes().startswith(CONTENT)
    assert verify_checksum(path)
    assert older.read_bytes() == b"older"
    assert not list((tmp_path / "stage-out").iterdir())
    assert "at 120 samples (7.0 MB) is copied" in (tmp_path / "logs" / "stage-out.log").read_text()
    assert said[-1].endswith("has ended with 0")


def test_a_part_gets_its_place_among_the_others(tmp_path: Path, stage_outs: StageOuts) -> None:
    staged = StagedCheckpoint(len(CONTENT), 120, 1, 2, "0123abcd")
    write_mark(tmp_path, staged, 30.0)
    take(stage_outs, tmp_path, staged)
    wait_for(stage_outs)
    folder = parts_folder(tmp_path / "checkpoints", 120)
    path = part_path(folder, "0123abcd", 1, 2)
    assert list(folder.iterdir()) == [path]
    assert path.read_bytes() == CONTENT


def test_what_nobody_waits_for_is_not_copied(tmp_path: Path, stage_outs: StageOuts) -> None:
    take(stage_outs, tmp_path, StagedCheckpoint(len(CONTENT), 120))
    wait_for(stage_outs)
    assert not (tmp_path / "checkpoints").exists()


def test_where_nothing_is_offered_nothing_is_copied(tmp_path: Path, said: list[str]) -> None:
    none = StageOuts(None, said.append)
    take(none, tmp_path, StagedCheckpoint(len(CONTENT), 120))
    assert not none.under_way
    assert not said


def test_a_disk_that_can_t_be_written_leaves_nothing(tmp_path: Path, stage_outs: StageOuts) -> None:
    (tmp_path / "checkpoints").write_text("no folder")
    staged = StagedCheckpoint(len(CONTENT), 120)
    write_mark(tmp_path, staged, 30.0)
    take(stage_outs, tmp_path, staged)
    wait_for(stage_outs)
    assert "is not copied, the last one counts" in (tmp_path / "logs" / "stage-out.log").read_text()
    assert not list((tmp_path / "stage-out").iterdir())


def test_a_process_that_does_not_end_in_time_is_killed(tmp_path: Path, said: list[str]) -> None:
    stage_outs = StageOuts(StageOutTerms(0.5, 64 << 20), said.append)
    staged = StagedCheckpoint(len(CONTENT), 120)
    write_mark(tmp_path, staged, 0.5)
    take(stage_outs, tmp_path, staged)
    (pid,) = stage_outs.pids
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    wait_for(stage_outs)
    assert time.monotonic() - began < 10
    assert said[-1].endswith("has ended with -9")


def test_the_end_of_the_agent_ends_what_is_copied(tmp_path: Path, stage_outs: StageOuts) -> None:
    staged = StagedCheckpoint(len(CONTENT), 120)
    write_mark(tmp_path, staged, 30.0)
    take(stage_outs, tmp_path, staged)
    (pid,) = stage_outs.pids
    os.kill(pid, signal.SIGSTOP)
    stage_outs.close()
    wait_until(lambda: (status := read_status(pid)) is None or status.ended, 10, "its end")
    before = stage_outs.pids
    take(stage_outs, tmp_path, staged)
    assert stage_outs.pids == before, "none is begun any more"


def test_a_user_has_no_more_than_that_and_two_users_at_most_have_any() -> None:
    ann, bob, eve = 1, 2, 3
    assert has_room([], ann, 10, 10)
    assert not has_room([], ann, 11, 10)
    assert not has_room([(ann, 5)], ann, 6, 10)
    assert has_room([(ann, 5), (ann, 5)], bob, 10, 10)
    assert not has_room([(ann, 1), (bob, 1)], eve, 1, 10)
    assert not has_room([(ann, 0)] * 64, ann, 0, 10)


# -- with the rights of the job's user, under an agent of root ---------------------------------------------------------

LEAVING = """\
import os
from pathlib import Path
from malletrain.common.processes import read_status
from malletrain.common.stage_out import StagedCheckpoint, write_mark

job, memory = Path(os.environ["MALLETRAIN_JOB_DIR"]), int(os.environ["MALLETRAIN_HANDOVER_MEMORY"])
print("offered", os.environ.get("MALLETRAIN_STAGE_OUT"), flush=True)
staged = StagedCheckpoint(7, 120)
write_mark(job, staged, 30.0)
os.pwrite(memory, b"weights" + staged.ending(), 0)
print("left", flush=True)
"""


@pytest.fixture(scope="module")
def everybody() -> Iterator[Path]:
    with folder_of_everybody() as folder:
        yield folder


@pytest.fixture(scope="module")
def python(everybody: Path) -> str:
    return str(python_of_everybody(everybody, ANN))


@pytest.fixture(scope="module")
def agent(everybody: Path, python: str) -> Iterator[RunningAgent]:
    (everybody / "state").mkdir(mode=0o700)
    options = ("--stage-out-seconds", "30", "--stage-out-mib", "1")
    running = RunningAgent("n1", everybody / "state", "127.0.0.1:9", 1.5, *options, python=python)
    yield running
    running.close()


def leave_checkpoint(agent: RunningAgent, everybody: Path, python: str, job_id: str, folder: Path) -> None:
    """A job of Ann leaves one, ends, and its node is given back; until it has been copied, or not."""
    session = Session(agent, job_certificate(everybody / "state", job_id, account_named(ANN).user_id))
    session.send(start(job_id, folder, [python, "-c", LEAVING]))
    session.next("started")
    session.send(pb.ControlWorkersRequest(start_code=pb.StartCode(worker=1)))
    assert session.next("ended").exit_status == 0, (folder / "log").read_text()
    assert "offered 30 1048576\nleft" in (folder / "log").read_text()
    before = agent.said.count("has ended with")
    session.send(pb.ControlWorkersRequest(sweep=pb.SweepJob(request=7, job_id=job_id)))
    assert session.next("swept").request == 7
    wait_until(lambda: agent.said.count("has ended with") > before, 30, "the end of copying")
    session.close()


@needs_root
def test_it_is_the_user_s_own_file(everybody: Path, agent: RunningAgent, python: str) -> None:
    folder = own_folder(everybody, ANN, "j000001")
    leave_checkpoint(agent, everybody, python, "j000001", folder)
    path = folder / "checkpoints" / "samples-000000000000120.pt"
    assert path.read_bytes().startswith(b"weights"), agent.said
    assert path.owner() == ANN
    assert path.stat().st_mode & 0o077 == 0


@needs_root
def test_a_link_leads_nowhere_where_the_user_may_not_write(everybody: Path, agent: RunningAgent, python: str) -> None:
    folder = own_folder(everybody, ANN, "j000002")
    roots = everybody / "roots"
    roots.mkdir(mode=0o755)
    (folder / "checkpoints").symlink_to(roots)
    leave_checkpoint(agent, everybody, python, "j000002", folder)
    assert not list(roots.iterdir())
    assert not (folder / "stage-out" / "120-0").exists()
