"""Reporters with a valid token of a job: what they send that is not stored yet takes a bounded amount of memory."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from malletrain.cli.shared.settings import load
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.clock import SystemClock
from tests.hostile.floods import MIB, REPORTED_JOB, send_reports
from tests.hostile.raw_http2 import RawConnection, message_head
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(300)]

REPORT = "/malletrain.v1.MonitorService/Report"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    toml = '[scavenger]\nsource = "static"\nnodes = ["n1"]\n'
    with deployed(tmp_path_factory.mktemp("up"), toml) as deployment:
        yield deployment


def token_of(system: Deployment) -> str:
    return open_installation(load(system.config), SystemClock()).tokens.sign(REPORTED_JOB, Role.JOB, 600, REPORTED_JOB)[
        0
    ]


def flood(system: Deployment, records: int, messages: int) -> int:
    """Send reports on four streams as fast as they are taken; returns by how many bytes Monitor grew at most."""
    process = psutil.Process(system.pids()["monitor"])
    before = peak = process.memory_info().rss
    attack = send_reports(load(system.config).peer("monitor"), token_of(system), records, messages)
    while attack.is_alive():
        attack.join(0.01)
        peak = max(peak, process.memory_info().rss)
    print(f"{records} records in a message: {before / MIB:.0f} MiB, at most {peak / MIB:.0f}")
    return int(peak - before)


@pytest.mark.parametrize(
    ("records", "messages"), [(400_000, 8), (16_000, 200)], ids=["large messages", "many messages"]
)
def test_four_streams_of_one_job_take_a_bounded_amount(system: Deployment, records: int, messages: int) -> None:
    assert flood(system, records, messages) < 128 * MIB


def test_halves_of_messages_take_a_bounded_amount(system: Deployment) -> None:
    process = psutil.Process(system.pids()["monitor"])
    before = process.memory_info().rss
    connection = RawConnection(int(system.address("monitor").rpartition(":")[2]))
    token = token_of(system)
    for stream in [connection.call(REPORT, token) for _ in range(100)]:
        connection.send(stream, message_head(16 * MIB) + bytes(16 * MIB - 1), timeout=0.2)
    assert process.memory_info().rss < before + 128 * MIB
    connection.close()
