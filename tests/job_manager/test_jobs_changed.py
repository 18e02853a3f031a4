from __future__ import annotations

from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import JobsChanged
from tests.job_manager.harness import MachineHarness
from tests.support.builders import job_spec


def _jobs(*names: str) -> dict[str, Job]:
    machine = MachineHarness()
    machine.submit(job_spec())
    return dict.fromkeys(names, machine.job())


def test_of_several_changes_a_watcher_without_progress_is_told_of_jobs_that_have_changed_otherwise() -> None:
    samples = JobsChanged(_jobs("a", "b"), progressed=frozenset(("a", "b")))
    change = JobsChanged(_jobs("b", "c"), generation=3)
    for merged in (samples.followed_by(change), change.followed_by(samples)):
        assert merged.generation == 3
        assert set(merged.jobs) == {"a", "b", "c"}
        assert merged.progressed == {"a"}
        assert len(merged.for_watcher(without_progress=True)) == 2
        assert len(merged.for_watcher(without_progress=False)) == 3


def test_samples_alone_stay_samples() -> None:
    merged = JobsChanged(_jobs("a"), progressed=frozenset("a")).followed_by(
        JobsChanged(_jobs("a", "b"), progressed=frozenset(("a", "b")))
    )
    assert merged.progressed == {"a", "b"}
    assert not merged.for_watcher(without_progress=True)
