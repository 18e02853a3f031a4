"""What the Allocator's machine was given is written down when it fails, and leads a replay to the same failure."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.allocator.machine.cluster_cache import ClusterCache
from malletrain.allocator.machine.machine import AllocatorMachine
from malletrain.allocator.machine.stimuli import Stimulus
from malletrain.runtime.kernel.documents import copy_state, from_document, to_document
from tests.allocator.peers import Peers
from tests.allocator.test_loop import allocator
from tests.allocator.test_machine import Driver, events
from tests.support.builders import cached_job
from tests.support.debug_replay import debug_replay
from tests.support.waiting import wait_until_async

FAULT = """
from malletrain.allocator.machine.cluster_cache import ClusterCache
ClusterCache.next_generation = lambda self, last: last or 1
"""


@settings(deadline=None, max_examples=60)
@given(before=st.lists(events(), max_size=25), after=st.lists(events(), max_size=25), answers=st.booleans())
def test_a_machine_goes_on_from_a_copy_and_from_a_document_as_it_would_have(
    before: list[Stimulus | float], after: list[Stimulus | float], answers: bool
) -> None:
    """In whatever phase it is."""
    driver = Driver()
    driver.know(cached_job("a"), cached_job("b", "n1"))
    for event in [*before, 1.0, 1.0]:
        driver.see(event, answers=answers)
    copied = copy_state(driver.machine)
    document = json.dumps(to_document(driver.machine))
    driver.told.clear()
    for event in [*after, *([1.0] * 12)]:
        driver.see(event, answers=True)
    for machine in (copied, from_document(AllocatorMachine, json.loads(document))):
        for stimulus, now, effects in driver.told:
            assert machine.advance(stimulus, now) == effects
        assert to_document(machine) == to_document(driver.machine)


async def test_a_defect_is_written_down_and_can_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterCache, "next_generation", lambda _, last: last or 1)
    peers, folder = Peers(), tmp_path / "debug"
    async with peers.serving() as address, allocator(tmp_path, address, validate=True, coalesce_seconds=0.05):
        await wait_until_async(lambda: peers.applied)
        peers.scavenger.tell("n3")
        await wait_until_async(lambda: folder.exists() and any(folder.glob("allocator-stimuli-*.json")))
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(peers.applied) == 1, "a plan that breaks an invariant must not go out"

    again = debug_replay(file, fault=FAULT)
    assert again.returncode == 0, again.stderr
    assert "the same failure as recorded: InvariantError: generation 1 follows 1" in again.stdout
    mended = debug_replay(file)
    assert mended.returncode == 1
    assert "replayed: no failure" in mended.stdout
