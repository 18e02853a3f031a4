"""Planned starts of a real OpenPBS, whatever one job has in its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.sources.schedulers.pbs import pbs_source
from malletrain.scavenger.sources.schedulers.settings import PbsSettings
from tests.pbs.cluster import PbsCluster, missing, pbs_cluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(300)]


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsCluster]:
    if reason := missing():
        pytest.skip(reason)
    with pbs_cluster(2) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


async def test_a_byte_that_is_not_utf_8_hides_no_planned_start(pbs: PbsCluster) -> None:
    odd = os.fsdecode(b"caf\xe9\xff")
    running = pbs.submit_main(1, "sleep 60", ODD=odd)
    pbs.submit_main(1, "sleep 60")
    wait_until(lambda: pbs.is_running(running), 30, "the odd job")
    waiting = pbs.submit_main(2, "sleep 1")
    wait_until(lambda: "estimated" in pbs.jobs()[waiting], 60, "a planned start")
    source = pbs_source(PbsSettings(queues=("main",)), SystemClock())
    starts = await next(query for query in source.queries.all() if query.name == "queue").read()
    assert len(starts) == 1
