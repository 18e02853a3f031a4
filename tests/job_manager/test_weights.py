"""A job's weight is changed: in the machine, over a restart, and by calls of its owner and of others."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from malletrain.common.job_limits import MAX_PHASE_SECONDS
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import Cancelled, WeightSet
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.storage.store import decode, encode
from malletrain.model.job_terms import MAX_WEIGHT, MIN_WEIGHT
from malletrain.model.job_value import SpeedValue, ValueCurve, ValuePoint
from malletrain.model.scaling import MAX_RATE, ScalingPoint
from malletrain.runtime.access.identity import Role
from malletrain.runtime.errors import NotFoundError
from malletrain.v1 import job_manager_pb2 as pb
from malletrain.v1 import job_manager_pb2_grpc, resources_pb2
from tests.job_manager.harness import MachineHarness
from tests.job_manager.serving import Caller, ManagerHarness, serve_manager
from tests.job_manager.stand_in import make_python
from tests.support.access import credential_of
from tests.support.builders import job_spec
from tests.support.channels import plain_channel

ONE, TWO = "j000001", "j000002"


def stored_spec(weight: float, point: tuple[float, float]) -> JobSpec:
    """A spec that an earlier version took."""
    return replace(job_spec(weight=weight), value=SpeedValue(ValueCurve(points=(ValuePoint(*point),))))


def test_a_weight_is_changed_and_written_to_the_journal_once() -> None:
    machine = MachineHarness()
    machine.submit(job_spec(), owner="ada")
    before = machine.job(ONE)
    for _ in range(2):
        machine(WeightSet(ONE, 4.0, "ada"))
    machine(WeightSet(ONE, 0.5, "olga"))
    job = machine.job(ONE)
    assert job.spec.weight == 0.5
    assert (job.state, job.reason, job.reason_code) == (before.state, before.reason, before.reason_code)
    rows = [event.reason for event in machine.events if event.reason_code is JobReason.WEIGHT_SET]
    assert rows == ["weight 4 in place of 1, by its owner", "weight 0.5 in place of 4, by olga"]


def test_where_several_owners_share_a_weight_counts_among_the_jobs_of_its_owner() -> None:
    machine = MachineHarness(ManagerPolicy(fair_share_half_life_seconds=3600.0))
    machine.submit(job_spec(), job_spec(), owner="ada")
    machine.submit(job_spec(), owner="bob")
    machine(WeightSet(ONE, 3.0, "ada"))
    products = [job.spec.weight * job.share_weight for job in machine.state.jobs.values()]
    assert products == [1.5, 0.5, 1.0], "the mean of ada's is what it was"


HOSTILE = {
    "a product that is 0": [stored_spec(5e-324, (1.0, 0.0))],
    "a least weight": [job_spec(weight=5e-324)],
    "sums that are infinite": [job_spec(weight=1.7e308), job_spec(weight=1.6e308)],
    "a most that is infinite": [stored_spec(1.0, (1e-320, 1e6))],
    "both": [stored_spec(1.7e308, (1e-320, 1e6))],
}


@pytest.mark.parametrize("specs", HOSTILE.values(), ids=HOSTILE)
def test_no_weight_that_is_stored_keeps_others_from_their_shares(specs: list[JobSpec]) -> None:
    machine = MachineHarness(ManagerPolicy(fair_share_half_life_seconds=3600.0))
    machine.submit(*specs, owner="eve")
    machine.submit(job_spec(), owner="bob")
    machine.submit(job_spec(), owner="ada")
    for job in map(decode, map(encode, machine.state.jobs.values())):
        assert MIN_WEIGHT <= job.spec.weight <= MAX_WEIGHT
        assert 1e-16 < job.share_weight < 1e16
        if job.owner == "eve":
            assert job.spec.most_weight * job.share_weight <= len(specs) * (1 + 1e-9), "no more than an equal share"
        else:
            assert job.spec.weight * job.share_weight == 1.0


def test_the_weight_of_a_job_that_has_ended_is_not_changed() -> None:
    machine = MachineHarness()
    machine.submit(job_spec())
    machine(Cancelled(ONE))
    with pytest.raises(NotFoundError, match=f"no job {ONE} that has not ended"):
        machine(WeightSet(ONE, 4.0, "ada"))


CALLERS = {"ada": Role.USER, "bob": Role.USER, "vera": Role.VIEWER, "olga": Role.OPERATOR}


@contextlib.asynccontextmanager
async def served(tmp_path: Path, **section: Any) -> AsyncIterator[tuple[ManagerHarness, dict[str, Caller]]]:
    folder = tmp_path / uuid.uuid4().hex
    folder.mkdir()
    python = make_python(folder)
    async with (
        serve_manager(tmp_path / "state", python, reconcile_seconds=0.05, **section) as harness,
        contextlib.AsyncExitStack() as stack,
    ):
        callers = {}
        for name, role in CALLERS.items():
            channel = await stack.enter_async_context(plain_channel(harness.address, credential_of(name, role)))
            callers[name] = Caller(job_manager_pb2_grpc.JobManagerServiceStub(channel))
        yield harness, callers


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def update(caller: Caller, job_id: str, weight: float | None) -> Any:
    return caller.stub.UpdateJob(pb.UpdateJobRequest(job_id=job_id, weight=weight))


async def test_owner_and_operators_change_a_weight_and_nobody_else(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, callers):
        job_id = await callers["ada"].submit()
        with capture_logs() as logs:
            for name in ("ada", "olga"):
                assert (await update(callers[name], job_id, 2.5)).job.spec.weight == 2.5
            for name, words in {"bob": "only its owner and operators may change it", "vera": "role user"}.items():
                code, message = await code_of(update(callers[name], job_id, 9.0))
                assert code is grpc.StatusCode.PERMISSION_DENIED
                assert words in message
        audited = [(line["user"], line["allowed"], line["job"]) for line in logs if line["event"] == "audit"]
        assert audited[:2] == [("ada", True, job_id), ("olga", True, job_id)]
        assert ("bob", False, job_id) in audited
        assert (await callers["vera"].job(job_id)).spec.weight == 2.5, "everybody sees weights"
        events = (await callers["ada"].stub.ListJobEvents(pb.ListJobEventsRequest(job_id=job_id))).events
        rows = [event.reason for event in events if event.reason_code == resources_pb2.JOB_REASON_WEIGHT_SET]
        assert rows == ["weight 2.5 in place of 1, by its owner"]


@pytest.mark.parametrize("weight", [None, 0.0, -1.0, 1e-7, 1e7, float("inf"), float("nan")])
async def test_what_is_no_weight_is_refused(tmp_path: Path, weight: float | None) -> None:
    async with served(tmp_path) as (_, callers):
        job_id = await callers["ada"].submit()
        code, message = await code_of(update(callers["ada"], job_id, weight))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert message.startswith("weight: expected")


async def test_ended_and_unknown_jobs_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, callers):
        job_id = await callers["ada"].submit()
        await callers["ada"].stub.CancelJob(pb.CancelJobRequest(job_id=job_id))
        code, message = await code_of(update(callers["ada"], job_id, 2.0))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "has ended" in message
        assert (await code_of(update(callers["ada"], "j000099", 2.0)))[0] is grpc.StatusCode.NOT_FOUND


async def test_changes_count_as_submissions(tmp_path: Path) -> None:
    async with served(tmp_path, max_submissions_per_second=1) as (_, callers):
        job_id = await callers["ada"].submit()
        codes = [(await code_of(update(callers["ada"], job_id, 1.0 + n)))[0] for n in range(2000)]
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
        code, _ = await code_of(update(callers["olga"], job_id, 1.0))
        assert code is grpc.StatusCode.OK, "others are not held back"


async def test_a_weight_survives_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, callers):
        job_id = await callers["ada"].submit()
        await update(callers["ada"], job_id, 7.0)
    async with served(tmp_path) as (_, callers):
        assert (await callers["ada"].job(job_id)).spec.weight == 7.0


def test_stored_curves_and_stalls_that_would_fail_a_plan_are_read_within_bounds() -> None:
    machine = MachineHarness()
    machine.submit(job_spec(curve=(ScalingPoint(1, 5.0), ScalingPoint(2, 1e200)), scale_up_seconds=1e300))
    spec = decode(encode(machine.job(ONE))).spec
    assert [point.rate for point in spec.curve] == [5.0, MAX_RATE]
    assert (spec.scale_up_seconds, spec.scale_down_seconds) == (MAX_PHASE_SECONDS, None)


async def test_jobs_that_an_earlier_version_took_keep_nobody_from_submitting(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, callers):
        job_id = await callers["ada"].submit()
    with contextlib.closing(sqlite3.connect(tmp_path / "state" / "job_manager.sqlite")) as database, database:
        ((body,),) = database.execute("SELECT body FROM jobs").fetchall()
        stored = decode(body)
        hostile = stored_spec(5e-324, (1.0, 0.0))
        changed = replace(stored, spec=replace(stored.spec, weight=hostile.weight, value=hostile.value))
        assert database.execute("UPDATE jobs SET body = ?", (encode(changed),)).rowcount == 1
    async with served(tmp_path, fair_share_half_life_seconds=3600.0) as (_, callers):
        other = await callers["bob"].job(await callers["bob"].submit())
        assert (other.spec.weight, other.share_weight) == (1.0, 1.0)
        job = await callers["bob"].job(job_id)
        assert (job.spec.weight, job.share_weight) == (MIN_WEIGHT, pytest.approx(1e15))
