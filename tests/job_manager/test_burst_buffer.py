"""The quota of burst buffer: held from admission to the end whatever happens; and why a job waits for it, in words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pydantic
import pytest

from malletrain.job_manager.machine.admission import MAX_WINDOW, AdmissionRule
from malletrain.job_manager.machine.burst_buffer import quota_use
from malletrain.job_manager.machine.sharing import owner_shares
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import Cancelled, Completion, Outcome, Ticked
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.job_manager.storage.change import Change
from malletrain.job_manager.storage.store import JobStore, decode, encode
from malletrain.model.burst_buffer import burst_buffer_in_words
from malletrain.model.job_state import JobState
from malletrain.runtime.access.identity import Role
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.kernel.documents import from_document, to_document
from malletrain.v1 import job_manager_pb2 as pb
from malletrain.v1 import job_manager_pb2_grpc, resources_pb2
from tests.job_manager.harness import MachineHarness
from tests.job_manager.serving import ManagerHarness, serve_manager
from tests.job_manager.stand_in import make_python
from tests.support.access import credential_of
from tests.support.builders import job_spec, spec_message
from tests.support.channels import plain_channel

FIFO = ManagerPolicy(burst_buffer_gb=4000)
WINDOW = ManagerPolicy(burst_buffer_gb=4000, admission=AdmissionRule.WINDOW, starvation_bound=2)


def submitted(policy: ManagerPolicy, *amounts: int) -> MachineHarness:
    machine = MachineHarness(policy)
    machine.idle("a", "b")
    machine.submit(*(job_spec(burst_buffer_gb=amount) for amount in amounts))
    return machine


def queued(machine: MachineHarness) -> dict[str, str]:
    return {job.id: job.reason for job in machine.state.jobs.values() if not job.admitted}


@pytest.mark.parametrize(
    ("gb", "words"),
    [(0, "0 GB"), (999, "999 GB"), (1000, "1 TB"), (2500, "2.5 TB"), (1001, "1.001 TB"), (1260000, "1260 TB")],
)
def test_amounts_in_words(gb: int, words: str) -> None:
    assert burst_buffer_in_words(gb) == words


def test_reasons_say_what_a_job_waits_for_and_follow_what_is_free() -> None:
    machine = submitted(FIFO, 3500, 2000, 0, 100)
    assert queued(machine) == {
        "j000002": "waits for 2 TB of burst buffer, 500 GB of 4 TB are free",
        "j000004": "waits for 100 GB of burst buffer behind others that asked before",
    }
    assert machine.job("j000002").reason_code is JobReason.BURST_BUFFER
    machine.submit(job_spec(), job_spec(burst_buffer_gb=1))
    assert machine.job("j000005").admitted, "nobody who asks for none is held up"
    rows = len(machine.events)
    machine.wait(1.0)
    assert len(machine.events) == rows, "a pass at which nothing has changed says nothing"
    machine(Cancelled("j000001"))
    assert not queued(machine)
    assert quota_use(machine.state.jobs.values(), 4000).free_gb == 4000 - 2000 - 100 - 1


def test_a_pass_counts_once_however_many_pass_a_job_over() -> None:
    machine = submitted(WINDOW, 2000)
    machine.submit(*(job_spec(burst_buffer_gb=amount) for amount in (4000, 500, 500, 500)))
    assert sum(job.admitted for job in machine.state.jobs.values()) == 4
    assert machine.job("j000002").passed_over == 1
    assert machine.job("j000002").reason == "waits for 4 TB of burst buffer, 500 GB of 4 TB are free"
    machine.submit(job_spec(), job_spec())
    assert machine.job("j000002").passed_over == 1, "who asks for none passes nobody over"


def test_past_the_bound_a_job_comes_first() -> None:
    machine = submitted(WINDOW, 1000)
    for amount in (4000, 500, 500, 500, 500):
        machine.submit(job_spec(burst_buffer_gb=amount))
    big = machine.job("j000002")
    assert big.passed_over == 2
    assert [job.admitted for job in machine.state.jobs.values()] == [True, False, True, True, False, False]
    assert (
        machine.job("j000005").reason
        == "waits for 500 GB of burst buffer behind j000002, which waits for 4 TB of burst buffer"
    )
    for _ in range(10):
        machine(Ticked())
    assert machine.job("j000002").passed_over == 2
    for job_id in ("j000001", "j000003", "j000004"):
        machine(Cancelled(job_id))
    assert machine.job("j000002").admitted
    assert machine.job("j000002").passed_over == 2
    assert set(queued(machine)) == {"j000005", "j000006"}


def test_the_quota_is_held_through_preemption_failure_and_cancellation_until_no_process_is_left() -> None:
    machine = submitted(FIFO, 3000, 2000)
    machine.plan(j1="a b")
    machine.confirm()

    def holds() -> int:
        return quota_use(machine.state.jobs.values(), 4000).held_gb

    machine.leave("a", "b")
    machine.end(outcome=Outcome.STOPPED)
    assert (machine.job().state, machine.job().commanded, holds()) == (JobState.WAITING, (), 3000)
    machine.join("a")
    machine.plan(j1="a")
    machine.end()
    assert machine.job().not_before is not None, "it backs off"
    assert holds() == 3000
    machine.wait(5.0)
    machine.plan(j1="a")
    machine(Cancelled("j000001"))
    assert (machine.job().state, holds()) == (JobState.STOPPING, 3000)
    assert queued(machine)
    machine.end(outcome=Outcome.STOPPED)
    assert (machine.job().state, holds()) == (JobState.CANCELLED, 2000)
    assert not queued(machine)


@pytest.mark.parametrize("ending", [JobState.COMPLETED, JobState.FAILED])
def test_the_quota_is_free_at_every_end(ending: JobState) -> None:
    machine = MachineHarness(FIFO)
    machine.idle("a", "b")
    machine.submit(job_spec(burst_buffer_gb=4000, max_restarts=0), job_spec(burst_buffer_gb=4000))
    machine.plan(j1="a b")
    machine.confirm()
    completion = Completion() if ending is JobState.COMPLETED else None
    machine.end(outcome=Outcome.EXITED if completion else Outcome.FAILED, completion=completion)
    assert machine.job().state is ending
    assert machine.job("j000002").admitted


def test_a_quota_that_was_lowered_admits_nobody_who_can_never_be_served_and_holds_up_nobody() -> None:
    machine = submitted(FIFO, 3000, 2000, 500)
    machine.policy = ManagerPolicy(burst_buffer_gb=1000)
    machine(Ticked())
    assert machine.job().admitted, "it keeps what it has"
    assert quota_use(machine.state.jobs.values(), 1000).free_gb == 0
    assert queued(machine) == {
        "j000002": "asks for 2 TB of burst buffer, and only 1 TB are granted",
        "j000003": "waits for 500 GB of burst buffer, 0 GB of 1 TB are free",
    }
    machine(Cancelled("j000001"))
    assert set(queued(machine)) == {"j000002"}


def test_no_place_is_another_reason_than_no_burst_buffer() -> None:
    machine = submitted(ManagerPolicy(max_parallel=2, burst_buffer_gb=4000), 3000, 2000)
    assert machine.job("j000002").reason_code is JobReason.BURST_BUFFER
    machine.submit(job_spec(), job_spec(), job_spec(burst_buffer_gb=10))
    assert machine.job("j000005").reason == "waits for one of 2 places"


def test_owners_are_told_what_they_hold() -> None:
    machine = MachineHarness(FIFO)
    machine.submit(job_spec(burst_buffer_gb=1000), job_spec(), owner="ada")
    machine.submit(job_spec(burst_buffer_gb=2000), job_spec(burst_buffer_gb=2000), owner="bob")
    held = {share.owner: share.burst_buffer_gb for share in owner_shares(machine.state, machine.now, 0.0)}
    assert held == {"ada": 1000, "bob": 2000}


def test_quota_and_counts_survive_a_kill(tmp_path: Path) -> None:
    machine = submitted(WINDOW, 1000)
    machine.submit(job_spec(burst_buffer_gb=4000), job_spec(burst_buffer_gb=500), job_spec(burst_buffer_gb=500))
    database = DatabaseAddress("job_manager", tmp_path)
    store = JobStore(open_database(database))
    store.save(Change(machine.state.jobs.values(), machine.events, 1))
    store.close()
    found = JobStore(open_database(database)).load()
    assert found.jobs == machine.state.jobs
    assert found.jobs["j000002"].passed_over == 1
    assert quota_use(found.jobs.values(), 4000).held_gb == 2000


def test_jobs_of_earlier_versions_ask_for_none_and_later_ones_can_be_read_by_earlier_code() -> None:
    job = submitted(FIFO, 0).job()
    body = encode(job).replace(',"burst_buffer_gb":0', "").replace(',"passed_over":0', "")
    assert body != encode(job)
    assert decode(body) == job


def test_recordings_keep_the_policy() -> None:
    assert from_document(ManagerPolicy, to_document(WINDOW)) == WINDOW


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"window": 0}, "window"),
        ({"window": MAX_WINDOW + 1}, "window"),
        ({"window": 2.5}, "window"),
        ({"starvation_bound": 0}, "starvation_bound"),
        ({"burst_buffer_gb": -1}, "burst_buffer_gb"),
        ({"burst_buffer_gb": 0.5}, "burst_buffer_gb"),
        ({"burst_buffer_gb": 10**9 + 1}, "burst_buffer_gb"),
        ({"admission": "lifo"}, "admission"),
        ({"admission": "window", "max_parallel": 2_000_000}, "admission"),
    ],
)
def test_settings_that_can_not_be_are_refused_by_name(settings: dict[str, object], field: str) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        JobManagerSettings.model_validate(settings)
    assert [error["loc"] for error in caught.value.errors()] == [(field,)]


def test_by_default_none_is_granted_and_who_comes_first_is_served_first() -> None:
    policy = JobManagerSettings().policy()
    assert (policy.burst_buffer_gb, policy.admission) == (0, AdmissionRule.FIFO)
    largest = {"max_parallel": 10**6, "burst_buffer_gb": 10**9 - 1, "admission": "window", "window": MAX_WINDOW}
    machine = submitted(JobManagerSettings.model_validate(largest).policy(), 10**9 - 2, 5, 7)
    assert queued(machine)


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[ManagerHarness]:
    section = {"burst_buffer_gb": 4000, "admission": "window", "reconcile_seconds": 0.05}
    async with serve_manager(tmp_path / "state", make_python(tmp_path), **section) as harness:
        yield harness


@pytest.mark.parametrize("asked", [-1, 4001])
async def test_a_wrong_request_stores_nothing(manager: ManagerHarness, asked: int) -> None:
    request = pb.SubmitJobsRequest(request_id="r1", specs=[spec_message(), spec_message(burst_buffer_gb=asked)])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await manager.stub.SubmitJobs(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith("specs[1].burst_buffer_gb: expected 0 to 4000 GB")
    listed = await manager.stub.ListJobs(pb.ListJobsRequest())
    assert not listed.jobs
    assert listed.burst_buffer == pb.BurstBufferQuota(granted_gb=4000, free_gb=4000)
    del request.specs[1]
    assert (await manager.stub.SubmitJobs(request)).jobs[0].id == "j000001", "the request_id is not taken either"


async def test_what_is_held_and_why_a_job_waits_is_told(manager: ManagerHarness) -> None:
    for amount in (3000, 2000):
        await manager.submit(burst_buffer_gb=amount)
    async with plain_channel(manager.address, credential_of("olga", Role.OPERATOR)) as channel:
        stub: job_manager_pb2_grpc.JobManagerServiceAsyncStub = job_manager_pb2_grpc.JobManagerServiceStub(channel)
        first, second = (await stub.ListJobs(pb.ListJobsRequest())).jobs
    assert (first.spec.burst_buffer_gb, first.admitted, second.admitted) == (3000, True, False)
    assert second.reason_code == resources_pb2.JOB_REASON_BURST_BUFFER
    assert second.reason == "waits for 2 TB of burst buffer, 1 TB of 4 TB are free"
    await manager.submit(burst_buffer_gb=500)
    assert (await manager.job(second.id)).passed_over == 1
    owners = await manager.stub.ListOwners(pb.ListOwnersRequest())
    assert owners.burst_buffer == pb.BurstBufferQuota(granted_gb=4000, held_gb=3500, free_gb=500)
    assert [owner.burst_buffer_gb for owner in owners.owners] == [3500]
