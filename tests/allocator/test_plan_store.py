from __future__ import annotations

from malletrain.allocator.plan_store import PlanStore
from malletrain.runtime.database.migrating import open_database
from malletrain.v1 import allocator_pb2
from tests.support.postgresql import Locate


def plan(generation: int, trigger: str = "nodes") -> allocator_pb2.Plan:
    return allocator_pb2.Plan(generation=generation, trigger=trigger)


def test_the_newest_plan_is_found_after_a_restart(locate: Locate) -> None:
    address = locate("allocator")
    store = PlanStore(open_database(address), plans_kept=3)
    assert store.newest() is None
    for generation in (2**40, 2**40 + 1):
        store.add(plan(generation))
    assert PlanStore(open_database(address), plans_kept=3).newest() == plan(2**40 + 1)


def test_a_plan_that_is_stored_again_replaces_itself_and_old_ones_go(locate: Locate) -> None:
    store = PlanStore(open_database(locate("allocator")), plans_kept=3)
    for generation in range(1, 6):
        store.add(plan(generation))
        store.add(plan(generation, "jobs"))
    assert store.count() == 3
    assert store.newest() == plan(5, "jobs")
