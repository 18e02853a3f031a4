"""Refusals by the thousand: the audit log counts them, and keeps the lines of what was allowed."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import structlog

from malletrain.runtime.access import audit as audited
from malletrain.runtime.access.audit import OTHERS, RefusalKind, Refusals
from malletrain.runtime.logs import RotatedFile, keep_refusals_apart, refusal_file, refusal_logger
from malletrain.v1 import profiler_pb2, profiler_pb2_grpc
from tests.support.access import CREDENTIAL
from tests.support.channels import plain_channel
from tests.support.stand_ins import serve

MANY = 2000


class Starting(profiler_pb2_grpc.ProfilerServiceServicer):
    async def StartProfile(self, request: Any, context: Any) -> profiler_pb2.StartProfileResponse:
        del request, context
        return profiler_pb2.StartProfileResponse()


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with serve(Starting(), tls=False) as served:
        yield served


async def test_thousands_of_refusals_have_few_lines(address: str) -> None:
    request = profiler_pb2.StartProfileRequest(job_id="j000001")
    with structlog.testing.capture_logs() as logs:
        async with plain_channel(address, None) as stranger, plain_channel(address, CREDENTIAL) as known:
            refused = profiler_pb2_grpc.ProfilerServiceStub(stranger)
            for _ in range(MANY // 50):
                calls = [refused.StartProfile(request, timeout=30) for _ in range(50)]
                codes = {await call.code() for call in calls}
                assert codes == {grpc.StatusCode.UNAUTHENTICATED}
            await profiler_pb2_grpc.ProfilerServiceStub(known).StartProfile(request, timeout=30)
    lines = [line for line in logs if line["event"] == "audit"]
    assert len([line for line in lines if line["allowed"]]) == 1
    assert 0 < len([line for line in lines if not line["allowed"]]) < 20


async def test_what_has_no_line_is_counted() -> None:
    reported: dict[RefusalKind, int] = {}
    refusals = Refusals(reported.__setitem__)
    kind = RefusalKind("ipv4:127.0.0.1", "/x/Y", "no token")
    lines = sum(refusals.count_refusal(kind) for _ in range(1000))
    refusals.end()
    assert lines + reported[kind] == 1000


async def test_names_that_callers_choose_do_not_make_kinds_without_end() -> None:
    reported: dict[RefusalKind, int] = {}
    refusals = Refusals(reported.__setitem__)
    lines = sum(refusals.count_refusal(RefusalKind(f"user {number}", "/x/Y", "")) for number in range(5000))
    refusals.end()
    assert lines < 300
    assert lines + reported[OTHERS] == 5000


async def test_an_interval_ends_by_itself() -> None:
    reported = asyncio.Event()

    def report(kind: RefusalKind, count: int) -> None:
        assert (kind.who, count) == ("x", 92)
        reported.set()

    refusals = Refusals(report, seconds=0.01)
    for _ in range(100):
        refusals.count_refusal(RefusalKind("x", "/x/Y", ""))
    async with asyncio.timeout(10):
        await reported.wait()


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Path]:
    path = refusal_file(tmp_path, "profiler")
    keep_refusals_apart(path)
    yield path
    keep_refusals_apart(None)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_refusals_never_push_out_what_was_allowed(apart: Path, address: str) -> None:
    audited.REFUSALS.end()  # those of other tests
    apart.unlink(missing_ok=True)
    keep_refusals_apart(apart)
    request = profiler_pb2.StartProfileRequest(job_id="j000001")
    with structlog.testing.capture_logs() as logs:
        async with plain_channel(address, None) as stranger, plain_channel(address, CREDENTIAL) as known:
            refused = profiler_pb2_grpc.ProfilerServiceStub(stranger)
            for _ in range(20):
                assert await refused.StartProfile(request, timeout=30).code() == grpc.StatusCode.UNAUTHENTICATED
            await profiler_pb2_grpc.ProfilerServiceStub(known).StartProfile(request, timeout=30)
    assert [line["allowed"] for line in logs if line["event"] == "audit"] == [True]
    kept = lines_of(apart)
    assert {line["event"] for line in kept} <= {"audit", "audit of many calls"}
    assert not any(line["allowed"] for line in kept)
    assert 0 < len(kept) < 20
    assert all({"timestamp", "level", "method", "reason"} <= line.keys() for line in kept)
    assert stat.S_IMODE(apart.stat().st_mode) == 0o600


def test_the_file_of_refusals_is_bounded(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "logs/x.refused.log", max_bytes=1000)
    for number in range(1000):
        file.write(f"line {number:04}\n")
    newest, before = (tmp_path / "logs" / name for name in ("x.refused.log", "x.refused.log.1"))
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [newest.name, before.name]
    assert newest.read_text().endswith("line 0999\n")
    assert max(newest.stat().st_size, before.stat().st_size) <= 1000
    file.close()
    again = RotatedFile(newest, max_bytes=1000)
    again.write("x" * 900)
    again.write("x" * 900)
    assert newest.stat().st_size == 900
    again.close()


def test_refusals_that_can_not_be_written_are_lost_and_nothing_fails(tmp_path: Path) -> None:
    path = refusal_file(tmp_path, "monitor")
    path.mkdir(parents=True)
    keep_refusals_apart(path)
    try:
        refusal_logger("x").info("one")
        refusal_logger("x").info("two")
        path.rmdir()
        refusal_logger("x").info("three")
    finally:
        keep_refusals_apart(None)
    assert [line["event"] for line in lines_of(path)] == ["lines of the log were lost", "three"]
    assert lines_of(path)[0]["lines"] == 2
