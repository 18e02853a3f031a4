"""Real services are recorded; the replay of what they decided gives the samples that Monitor counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.journaling.running import record
from malletrain.cli.journal.reading import read_journal, read_live
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.simulator.journal.conversion import journal_input
from malletrain.simulator.journal.decided import AGREEMENT, agreement, relative
from malletrain.simulator.journal.record import Journal
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.support.waiting import wait_until

_REPLAYED = (
    *("name", "family", "min_nodes", "max_nodes", "permitted_nodes", "curve", "scale_up_seconds", "scale_down_seconds"),
    *("weight", "target_samples", "burst_buffer_gb"),
)
pytestmark = [pytest.mark.long, pytest.mark.system]


def test_the_replay_of_what_was_decided_agrees_with_what_happened(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()

    def enough(stubs: ServiceStubs) -> None:
        """A job has completed, and jobs have changed their scale several times, by plans and by nodes that left."""

        def found() -> bool:
            jobs = stubs.job_manager.ListJobs(job_manager_pb2.ListJobsRequest(), timeout=30).jobs
            completed = sum(job.state == resources_pb2.JOB_STATE_COMPLETED for job in jobs)
            return (
                completed >= 1
                and sum(job.rescales for job in jobs) >= 4
                and sum(job.preemptions for job in jobs) >= 1
                and all(job.samples for job in jobs if job.state == resources_pb2.JOB_STATE_RUNNING)
            )

        wait_until(found, 240, "a job that has completed, and changes of scale")

    lived: list[Journal] = []

    def enough_and_read(stubs: ServiceStubs) -> None:
        enough(stubs)
        lived.append(read_live(stubs))

    config = record(folder, nodes=8, jobs=4, events_per_second=0.2, seconds=60, until=enough_and_read)
    journal = read_journal(str(folder), load(config))
    found = agreement(journal)
    assert len(found) >= 3
    recorded, replayed = sum(job.recorded for job in found), sum(job.replayed for job in found)
    assert recorded > 5000
    assert abs(relative(replayed, recorded)) <= AGREEMENT, found
    past = journal_input(journal, journal.begin_unix, journal.end_unix)
    assert {job.id for job in past.jobs} >= {job.job_id for job in found}
    assert len(past.trace.nodes) == 8
    _is_a_beginning(lived[0], journal)
    assert any(fragment.idle_until_s < past.trace.duration_s for fragment in past.trace.fragments), "some nodes left"


def _is_a_beginning(live: Journal, stored: Journal) -> None:
    """What the running services told is what was found in their databases later, but for what happened since."""
    assert live.idle == stored.idle[: len(live.idle)]
    assert len(live.idle) >= 2
    assert live.pools == stored.pools
    assert [one.job.id for one in live.jobs] == [one.job.id for one in stored.jobs]
    for now, later in zip(live.jobs, stored.jobs, strict=True):
        assert list(now.events) == [replace(event, reason="") for event in later.events][: len(now.events)]
        assert (now.job.create_time, now.job.owner) == (later.job.create_time, later.job.owner)
        assert [getattr(now.job.spec, name) for name in _REPLAYED] == [
            getattr(later.job.spec, name) for name in _REPLAYED
        ]
        assert (now.job.spec.command, dict(now.job.spec.environment)) == ((), {})
        if now.measured is not None and later.measured is not None:
            assert now.measured.samples <= later.measured.samples
            assert now.measured.rescales == later.measured.rescales[: len(now.measured.rescales)]
