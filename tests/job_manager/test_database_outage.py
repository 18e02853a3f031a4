"""PostgreSQL goes away while JobManager runs: nothing is lost or done twice, and nodes are released at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import grpc.aio
import pytest

from malletrain.job_manager.storage.change import Change, Submission
from malletrain.job_manager.storage.store import JobStore
from malletrain.runtime.database.errors import CommitUnknownError, DatabaseTakenError, DatabaseUnavailableError
from malletrain.runtime.database.migrating import open_database
from malletrain.v1 import job_manager_pb2 as pb
from tests.job_manager.harness import MachineHarness, running
from tests.job_manager.manager_process import ManagerProcess, manager_process, planned, serving
from tests.job_manager.serving import Caller, processes_of
from tests.job_manager.stand_in import make_python
from tests.support.builders import job_spec
from tests.support.postgresql import PostgresServer, postgresql_server
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.long, pytest.mark.system]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One of our own, to be killed."""
    with postgresql_server() as found:
        yield found


@pytest.fixture
async def harness(server: PostgresServer, tmp_path: Path) -> AsyncIterator[ManagerProcess]:
    settings = {"database_url": server.new_database(), "database_password_file": str(server.password_file)}
    async with manager_process(tmp_path / "state", make_python(tmp_path), settings=settings) as found:
        yield found


def pids(state_dir: Path, node: str) -> set[int]:
    return {pid for pid, found in processes_of(state_dir).items() if found.get("MALLETRAIN_NODE") == node}


async def events(caller: Caller, job_id: str) -> list[pb.JobEvent]:
    return list((await caller.stub.ListJobEvents(pb.ListJobEventsRequest(job_id=job_id))).events)


async def answers(caller: Caller) -> None:
    """Wait until JobManager has its database again, and has stored what waited for it."""

    async def asks() -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await caller.submit()
                return
            await asyncio.sleep(0.05)

    await asyncio.wait_for(asks(), 30)


async def test_a_server_that_is_killed(harness: ManagerProcess, server: PostgresServer) -> None:
    process, caller, scavenger = harness
    job_id = await caller.submit()
    await planned(caller, 1, j1="n1 n2 n3")
    await caller.until(job_id, "RUNNING")
    before = pids(process.state_dir, "n1")
    server.kill()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await caller.submit()
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "the database of job_manager does not answer" in (refused.value.details() or "")
    scavenger.tell(left="n2")
    await wait_until_async(lambda: not pids(process.state_dir, "n2"))
    assert list((await caller.until(job_id, "RUNNING")).confirmed_nodes) == ["n1", "n3"], "it shrinks without a record"
    with pytest.raises(grpc.aio.AioRpcError, match="does not answer"):
        await caller.plan(2, j1="n1 n3 n4")
    with pytest.raises(grpc.aio.AioRpcError, match="does not answer"):
        await caller.stub.CancelJob(pb.CancelJobRequest(job_id=job_id))
    server.start()
    await answers(caller)
    reasons = [event.reason for event in await events(caller, job_id)]
    assert len([reason for reason in reasons if reason == "preempted: n2 left"]) == 1
    assert len([reason for reason in reasons if reason.startswith("released")]) == 1
    await caller.plan(2, j1="n1 n3 n4")
    await caller.until(job_id, "RUNNING")
    assert pids(process.state_dir, "n1") == before, "nothing was started again"
    process.kill()
    process.start()
    await serving(caller)
    job = await caller.job(job_id)
    assert (list(job.commanded_nodes), job.preemptions, job.restarts) == (["n1", "n3", "n4"], 1, 0)
    assert len((await caller.stub.ListJobs(pb.ListJobsRequest())).jobs) == 2, "what was refused was not done"


async def test_connections_that_are_ended_are_not_noticed(harness: ManagerProcess, server: PostgresServer) -> None:
    _, caller, _ = harness
    for number in range(1, 11):
        server.end_connections()
        assert await caller.submit() == f"j{number:06d}"


async def test_a_server_that_hangs(harness: ManagerProcess, server: PostgresServer) -> None:
    process, caller, scavenger = harness
    job_id = await caller.submit()
    await planned(caller, 1, j1="n1 n2")
    await caller.until(job_id, "RUNNING")
    server.hang()
    try:
        scavenger.tell(left="n2")
        await wait_until_async(lambda: not pids(process.state_dir, "n2"))
        with pytest.raises(grpc.aio.AioRpcError, match="does not answer"):
            await caller.submit()
    finally:
        server.go_on()
    await answers(caller)
    assert [event.reason for event in await events(caller, job_id)].count("preempted: n2 left") == 1


async def test_jobs_that_end_meanwhile_have_ended(harness: ManagerProcess, server: PostgresServer) -> None:
    process, caller, _ = harness
    job_id = await caller.submit("sh", "-c", "while [ ! -e $MALLETRAIN_JOB_DIR/go ]; do sleep 0.02; done")
    await planned(caller, 1, j1="n1")
    await caller.until(job_id, "RUNNING")
    server.kill()
    (process.state_dir / "jobs" / job_id / "go").touch()
    await wait_until_async(lambda: not pids(process.state_dir, "n1"))
    server.start()
    await answers(caller)
    await caller.until(job_id, "COMPLETED")
    states = [event.to_state for event in await events(caller, job_id)]
    assert len(states) == len(set(states)), "each state once"


# -- a commit of which nobody knows ----------------------------------------------------------------------------------


class _Proxy:
    """Passes bytes on to a server. On request it breaks off after the next COMMIT, whose answer it keeps to itself."""

    def __init__(self, host: str, port: int) -> None:
        self.break_off = False
        self.broken = 0
        self._target = host, port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self.port = int(server.result(10).sockets[0].getsockname()[1])

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(*self._target)
        commit = asyncio.Event()

        async def back() -> None:
            while chunk := await behind_reader.read(65536):
                if commit.is_set():
                    self.broken += 1
                    break
                writer.write(chunk)
            writer.transport.abort()

        answering = asyncio.create_task(back())
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                if self.break_off and b"COMMIT" in chunk:
                    self.break_off = False
                    commit.set()
                behind_writer.write(chunk)
        behind_writer.close()
        await answering


@contextmanager
def proxied(server: PostgresServer) -> Iterator[_Proxy]:
    proxy = _Proxy("127.0.0.1", server.port)
    try:
        yield proxy
    finally:
        proxy.close()


def through(url: str, proxy: _Proxy) -> str:
    return url.replace(f":{urlsplit(url).port}/", f":{proxy.port}/")


async def test_a_submission_whose_commit_is_not_answered_is_done_once(server: PostgresServer, tmp_path: Path) -> None:
    with proxied(server) as proxy:
        settings = {
            "database_url": through(server.new_database(), proxy),
            "database_password_file": str(server.password_file),
        }
        async with manager_process(tmp_path / "state", make_python(tmp_path), settings=settings) as (_, caller, _):
            first = await caller.submit()
            request = pb.SubmitJobsRequest(specs=[(await caller.job(first)).spec], request_id="once")
            request.specs[0].environment["A"] = "1"
            proxy.break_off = True
            with pytest.raises(grpc.aio.AioRpcError, match="not known whether the change was stored"):
                await caller.stub.SubmitJobs(request)
            assert proxy.broken == 1

            async def repeated() -> list[str]:
                while True:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        return [job.id for job in (await caller.stub.SubmitJobs(request)).jobs]
                    await asyncio.sleep(0.05)

            assert await asyncio.wait_for(repeated(), 30) == ["j000002"]
            await answers(caller)
            for job_id in ("j000001", "j000002", "j000003"):
                assert len(await events(caller, job_id)) == 2, "queued and admitted, or queued"


def test_a_change_is_stored_once_however_often_its_commit_is_not_answered(
    server: PostgresServer, tmp_path: Path
) -> None:
    with proxied(server) as proxy:
        address = server.address("job_manager", tmp_path)
        object.__setattr__(address, "url", through(address.url, proxy))
        store = JobStore(open_database(address))
        machine = running("a b")
        change = Change(tuple(machine.state.jobs.values()), machine.events, 3, Submission("r", "d", (1,)))
        proxy.break_off = True
        with pytest.raises(CommitUnknownError):
            store.save(change)

        def saved() -> bool:
            with contextlib.suppress(DatabaseUnavailableError):
                store.save(change)
                return True
            return False

        wait_until(saved, 30)
        assert [stored.event for stored in store.events(0, 100, None)] == machine.events
        assert store.load().generation == 3


def test_two_that_use_one_database_do_not_both_write(server: PostgresServer, tmp_path: Path) -> None:
    address = server.address("job_manager", tmp_path)
    first, second = JobStore(open_database(address)), JobStore(open_database(address))
    machine = MachineHarness()
    machine.submit(job_spec())
    first.save(Change(tuple(machine.state.jobs.values()), machine.events))
    with pytest.raises(DatabaseTakenError):
        second.save(Change((), machine.events))
    assert len(first.events(0, 100, None)) == len(machine.events)
