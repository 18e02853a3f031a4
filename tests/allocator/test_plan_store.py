from __future__ import annotations

import random

from sqlalchemy import text

from malletrain.allocator.history.plan_store import PlanStore
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


def test_plans_are_compressed_and_those_of_earlier_versions_can_be_read(locate: Locate) -> None:
    engine = open_database(locate("allocator"))
    earlier, later = plan(1, "node of an earlier version"), plan(2, "nodes joined " * 1000)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO plans VALUES (1, :plan)"), {"plan": earlier.SerializeToString()})
    store = PlanStore(engine, plans_kept=3)
    assert store.newest() == earlier
    store.add(later)
    assert list(store.newest_first()) == [later, earlier]
    assert (store.get(1), store.get(2)) == (earlier, later)
    with engine.connect() as connection:
        stored = connection.scalar(text("SELECT plan FROM plans WHERE generation = 2"))
    assert len(bytes(stored)) < len(later.SerializeToString()) / 10


def test_plans_are_bounded_by_their_bytes_too_and_the_newest_one_is_kept(locate: Locate) -> None:
    store = PlanStore(open_database(locate("allocator")), plans_kept=100, bytes_kept=2000)
    noise = [random.Random(seed).randbytes(500).hex() for seed in range(6)]  # it can't have fewer than 500 bytes
    for generation in range(1, 6):
        store.add(plan(generation, noise[generation]))
    assert [one.generation for one in store.newest_first()] == [5, 4, 3]
    store.add(plan(6, "".join(noise)))
    assert [one.generation for one in store.newest_first()] == [6], "larger than all that may be kept"


def test_several_plans_are_stored_at_once(locate: Locate) -> None:
    store = PlanStore(open_database(locate("allocator")), plans_kept=2)
    store.add(*map(plan, (1, 2, 3)))
    store.add()
    assert [one.generation for one in store.newest_first()] == [3, 2]
