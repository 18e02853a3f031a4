"""The store keeps a step whole, and what it has kept survives a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy.exc

from malletrain.job_manager.states import JobState
from malletrain.job_manager.stimuli import Completion, PlanReceived
from malletrain.job_manager.store import Store, Submission
from tests.job_manager.builders import Play, running, spec
from tests.support.waiting import wait_until

WRITER = """
import sys
from malletrain.job_manager.store import Store
from tests.job_manager.builders import running

store = Store(sys.argv[1])
play = running("a b", spare="c d")
store.save(play.world.jobs.values(), play.events, play.world.generation)
generation = play.world.generation
while True:
    play.events.clear()
    play.plan(j1="a b" if generation % 2 else "a b c")
    play.confirm()
    generation = play.world.generation
    store.save(play.world.jobs.values(), play.events, generation)
    print(generation, flush=True)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.sqlite'}"


def test_a_world_comes_back_as_it_was(url: str) -> None:
    play = running("a b c", spec(slots_per_node=2, environment={"A": "1"}), spec(), spare="d")
    play.leave("b")
    store = Store(url)
    store.save(play.world.jobs.values(), play.events, play.world.generation)
    found = Store(url).load()
    assert found.jobs == play.world.jobs
    assert (found.generation, found.last_number, found.idle) == (1, 2, None)


def test_ended_jobs_are_kept_but_not_loaded(url: str) -> None:
    play = running("a")
    play.end(completion=Completion(5, {"loss": 0.25}))
    store = Store(url)
    store.save(play.ended.values(), play.events, 1)
    assert store.load().jobs == {}
    assert store.load().last_number == 1
    assert store.job(1) == play.ended["j000001"]
    assert store.jobs(0, 10, [JobState.COMPLETED]) == [play.ended["j000001"]]
    assert store.jobs(0, 10, [JobState.FAILED]) == []
    journal = [stored.event for stored in store.events(0, 100, 1)]
    assert journal == play.events
    assert [event.to_state for event in journal][-1] is JobState.COMPLETED


def test_a_submission_and_its_jobs_are_stored_together_or_not_at_all(url: str) -> None:
    store = Store(url)
    play = Play()
    play.submit(spec())
    submission = Submission("r1", "digest", (1,))
    store.save(play.world.jobs.values(), play.events, submission=submission)
    assert store.submission("r1") == submission
    assert store.submission("r2") is None
    play.submit(spec())
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        store.save(play.world.jobs.values(), play.events, submission=submission)
    assert len(store.load().jobs) == 1


def test_killed_in_the_middle_of_writing(url: str) -> None:
    root = Path(__file__).parents[2]
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, url],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
    )
    assert writer.stdout is not None
    seen = 0
    while seen < 30:
        seen = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    seen = max([seen, *map(int, writer.stdout.read().split())])
    wait_until(lambda: writer.poll() is not None)
    store = Store(url)
    world = store.load()
    (job,) = world.jobs.values()
    assert world.generation >= seen, "what was told to be stored is stored"
    assert job.plan_generation == world.generation
    last = store.events(0, 100_000, 1)[-1].event
    assert last.to_state is job.state
    assert last.nodes == job.commanded
    assert last.reason == job.reason


def test_generation_is_kept_even_where_no_job_changes(url: str) -> None:
    play = Play()
    play.idle("a")
    step = play(PlanReceived(41, ()))
    store = Store(url)
    store.save(step.changed, step.events, step.world.generation)
    assert store.load().generation == 41
