"""Real services are recorded; the replay of what they decided gives the samples that Monitor counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.journaling.running import record
from malletrain.cli.journal.reading import read_journal
from malletrain.cli.settings import load
from malletrain.cli.stubs import ServiceStubs
from malletrain.simulator.journal.conversion import journal_input
from malletrain.simulator.journal.decided import AGREEMENT, agreement, relative
from malletrain.v1 import job_manager_pb2, resources_pb2
from tests.support.waiting import wait_until

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

    config = record(folder, nodes=8, jobs=4, events_per_second=0.2, seconds=60, until=enough)
    journal = read_journal(str(folder), load(config))
    found = agreement(journal)
    assert len(found) >= 3
    recorded, replayed = sum(job.recorded for job in found), sum(job.replayed for job in found)
    assert recorded > 5000
    assert abs(relative(replayed, recorded)) <= AGREEMENT, found
    past = journal_input(journal, journal.begin_unix, journal.end_unix)
    assert {job.id for job in past.jobs} >= {job.job_id for job in found}
    assert len(past.trace.nodes) == 8
    assert any(fragment.idle_until_s < past.trace.duration_s for fragment in past.trace.fragments), "some nodes left"
