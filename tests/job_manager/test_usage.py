"""Usage: divided into days, added up by whatever is asked for, and charged."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from malletrain.job_manager.charging import Charge, ChargeRate, charge_of
from malletrain.job_manager.machine.state import ManagerPolicy
from malletrain.job_manager.machine.stimuli import ClockStepped, Completion, IdleSetSeen, NodesChanged, Progressed
from malletrain.job_manager.machine.usage import (
    DAY_SECONDS,
    Holding,
    OpenUsage,
    UsageAmounts,
    UsageRow,
    day_of,
    first_day,
    month_name,
    month_of,
    settle_usage,
)
from malletrain.job_manager.settings import JobManagerSettings
from malletrain.job_manager.storage.usage_query import StoredUsage, UsageKey, UsageQuery, UsageSum
from malletrain.job_manager.usage_report import entries_of, query_of
from malletrain.runtime.errors import InvalidInputError
from tests.job_manager.harness import MachineHarness
from tests.support.builders import job_spec

METERED = ManagerPolicy(meters_usage=True)
HOLDINGS = st.builds(
    Holding, st.integers(0, 50).map(float), st.integers(0, 400).map(float), st.integers(0, 20).map(float)
)
STEPS = st.lists(st.tuples(st.floats(0, 3 * DAY_SECONDS), HOLDINGS), min_size=1, max_size=8)
STARTS = st.floats(0, 40_000 * DAY_SECONDS)
TEXTS = st.sampled_from(["", "ada", "bob", "eve"])


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@given(start=STARTS, steps=STEPS)
def test_dividing_into_days_and_months_loses_nothing(start: float, steps: list[tuple[float, Holding]]) -> None:
    now, usage, days = start, OpenUsage(day_of(start), start), list[tuple[int, UsageAmounts]]()
    for seconds, held in steps:
        now += seconds
        ended, usage = settle_usage(usage, now, 0, 0)
        days += ended
        usage = replace(usage, holding=held)
    days.append((usage.day, usage.amounts))
    assert [day for day, _ in days] == sorted({day for day, _ in days})
    most = max(held.nodes for _, held in steps)
    assert all(amounts.node_seconds <= most * DAY_SECONDS + 1e-3 for _, amounts in days)
    held_before = [Holding(), *(held for _, held in steps[:-1])]
    for name, part in (("nodes", "node_seconds"), ("gpus", "gpu_seconds"), ("lost", "lost_node_seconds")):
        expected = sum(seconds * getattr(held, name) for (seconds, _), held in zip(steps, held_before, strict=True))
        assert sum(getattr(amounts, part) for _, amounts in days) == pytest.approx(expected, abs=0.01)


@given(start=STARTS, seconds=st.floats(0, 5 * DAY_SECONDS), cut=st.floats(0, 1), held=HOLDINGS)
def test_asking_in_between_changes_nothing(start: float, seconds: float, cut: float, held: Holding) -> None:
    usage = OpenUsage(day_of(start), start, holding=held)
    at_once, end = settle_usage(usage, start + seconds, 7, 1)
    first, between = settle_usage(usage, start + seconds * cut, 7, 1)
    then, also_end = settle_usage(between, start + seconds, 7, 1)
    for days, (day, last) in (([*at_once], (end.day, end)), ([*first, *then], (also_end.day, also_end))):
        days.append((day, last.counting(7, 1)))
    one = dict([*at_once, (end.day, end.counting(7, 1))])
    other = dict([*first, *then, (also_end.day, also_end.counting(7, 1))])
    for day in one.keys() | other.keys():
        found, expected = other.get(day, UsageAmounts()), one.get(day, UsageAmounts())
        assert found.node_seconds == pytest.approx(expected.node_seconds, abs=0.01)
        assert (found.samples, found.preemptions) == (expected.samples, expected.preemptions)


def test_a_clock_that_is_wrong_by_years_makes_no_million_days() -> None:
    usage = OpenUsage(0, 0.0, holding=Holding(2.0))
    days, usage = settle_usage(usage, at("2026-07-10"), 5, 0)
    assert len(days) < 500
    assert sum(amounts.node_seconds for _, amounts in days) + usage.amounts.node_seconds == 2.0 * at("2026-07-10")
    back, usage = settle_usage(usage, at("2020-01-01"), 5, 0)
    assert (back, usage.amounts.node_seconds, usage.since) == ([], 0.0, at("2020-01-01"))


def test_months_are_those_of_utc() -> None:
    assert month_name(month_of(day_of(at("2026-07-31T23:59:59")))) == "2026-07"
    assert month_name(month_of(day_of(at("2026-08-01T00:00:00")))) == "2026-08"
    assert first_day(month_of(day_of(at("2024-02-29")))) == day_of(at("2024-02-01"))


# What is asked for.

SUMS = st.lists(
    st.builds(
        UsageSum,
        TEXTS.filter(bool),
        TEXTS,
        st.integers(0, 5),
        st.integers(12 * 2025, 12 * 2026),
        st.builds(
            UsageAmounts, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(-9, 99), st.just(1)
        ),
    ),
    max_size=20,
)
OPENED = st.lists(
    st.builds(
        lambda number, owner, since, held, samples: UsageRow(
            number,
            day_of(since),
            owner,
            "",
            UsageAmounts(3.0),
            OpenUsage(day_of(since), since, UsageAmounts(3.0), held, samples),
        ),
        st.integers(10, 20),
        TEXTS.filter(bool),
        st.floats(at("2025-11-20"), at("2026-02-10")),
        HOLDINGS,
        st.integers(0, 100),
    ),
    max_size=5,
    unique_by=lambda row: row.job_number,
)
RATES = (ChargeRate(from_month="2025-06", node_hour=2.0, discount=0.75), ChargeRate(from_month="2026-01", gpu_hour=0.5))
GROUPINGS = [frozenset(keys) for size in range(5) for keys in combinations(UsageKey, size)]


@settings(max_examples=50)
@given(sums=SUMS, opened=OPENED)
def test_every_grouping_comes_to_the_same_total(sums: list[UsageSum], opened: list[UsageRow]) -> None:
    stored, totals = StoredUsage(tuple(sums), tuple(opened), ()), []
    samples = {row.job_number: 1000 for row in opened}
    for keys in GROUPINGS:
        entries = entries_of(stored, UsageQuery(keys, 0, 10**5), at("2026-02-15"), samples, RATES)
        assert len({(entry.owner, entry.project, entry.job_id, entry.month) for entry in entries}) == len(entries)
        totals.append(
            (
                sum((entry.amounts for entry in entries), UsageAmounts()),
                sum((entry.charge for entry in entries), Charge()),
            )
        )
    first, charge = totals[0]
    for amounts, other in totals:
        assert amounts.node_seconds == pytest.approx(first.node_seconds)
        assert amounts.gpu_seconds == pytest.approx(first.gpu_seconds)
        assert (amounts.samples, amounts.preemptions) == (first.samples, first.preemptions)
        assert other.reduced == pytest.approx(charge.reduced)
        assert other.reduced <= other.full + 1e-9


@given(opened=OPENED, cuts=st.lists(st.integers(day_of(at("2025-11-01")), day_of(at("2026-03-01"))), max_size=4))
def test_parts_of_the_time_add_up(opened: list[UsageRow], cuts: list[int]) -> None:
    stored, now = StoredUsage((), tuple(opened), ()), at("2026-02-15T12:00:00")
    bounds = sorted({0, *cuts, 10**5})

    def total(since: int, until: int) -> UsageAmounts:
        entries = entries_of(stored, UsageQuery(frozenset(), since, until), now, {}, ())
        return sum((entry.amounts for entry in entries), UsageAmounts())

    parts = sum((total(*part) for part in pairwise(bounds)), UsageAmounts())
    whole = total(0, 10**5)
    assert parts.node_seconds == pytest.approx(whole.node_seconds)
    assert parts.samples == whole.samples


@pytest.mark.parametrize(
    ("since", "until", "field"),
    [
        ("2026-7-1", "", "since"),
        ("2026-02-30", "", "since"),
        ("1969-12-31", "", "since"),
        ("", "next year", "until"),
        ("2026-07-02", "2026-07-02", "until"),
        ("2026-07-01\0", "", "since"),
    ],
)
def test_days_that_are_none_are_named(since: str, until: str, field: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        query_of([], since, until, "")
    assert error.value.field == field


# Charges.


def test_a_rate_holds_from_its_month_and_a_discount_is_taken_off() -> None:
    hour = UsageAmounts(node_seconds=7200.0, gpu_seconds=4 * 7200.0)
    july = month_of(day_of(at("2026-07-01")))
    rates = (
        ChargeRate(from_month="2026-07", node_hour=1.0, gpu_hour=0.25, discount=0.75),
        ChargeRate(from_month="2026-09", node_hour=10.0),
    )
    assert charge_of(hour, july - 1, rates) == Charge()
    assert charge_of(hour, july, rates) == Charge(4.0, 1.0)
    assert charge_of(hour, july + 1, rates) == Charge(4.0, 1.0)
    assert charge_of(hour, july + 2, rates) == Charge(20.0, 20.0)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"charge_rates": [{"from_month": "2026-13"}]}, "from_month"),
        ({"charge_rates": [{"from_month": "2026-07", "node_hour": -1}]}, "node_hour"),
        ({"charge_rates": [{"from_month": "2026-07", "discount": 75}]}, "discount"),
        ({"charge_rates": [{"from_month": "2026-07"}, {"from_month": "2026-07"}]}, "charge_rates"),
        ({"charge_rates": [{"from_month": "2026-07", "node_hours": 1}]}, "node_hours"),
        ({"projects": {"a\x1b[2J": ["ada"]}}, "projects"),
        ({"currency": "EUR\x1b[2J"}, "currency"),
    ],
)
def test_settings_that_can_not_be_used_are_named(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(ValidationError) as error:
        JobManagerSettings(**wrong)  # type: ignore[arg-type]
    assert field in str(error.value.errors()[0]["loc"])


# What the machine keeps.


def trains_on(nodes: str, **spec: object) -> MachineHarness:
    machine = MachineHarness(METERED, now=at("2026-07-31T22:00:00"))
    machine(IdleSetSeen(frozenset(("n1", "n2", "n3")), {"n1": 4, "n2": 4}))
    machine.submit(job_spec(**spec), owner="ada")
    machine.plan(j1=nodes)
    machine.confirm()
    return machine


def test_a_month_ends_while_a_job_trains() -> None:
    machine = trains_on("n1 n2", project="bio")
    machine.wait(2 * 3600 - 1)
    machine(Progressed("j000001", 700, stalled=False))
    machine.wait(2.0)
    machine(Progressed("j000001", 1000, stalled=False))
    machine.now += 1800.0
    machine.end(completion=Completion(1100))
    july, august = (machine.usage[1, day_of(at(text))] for text in ("2026-07-31", "2026-08-01"))
    assert (july.owner, july.project, july.open) == ("ada", "bio", None)
    assert july.amounts == UsageAmounts(2 * 7200.0, 8 * 7200.0, 0.0, 700, 0)
    assert august.amounts == UsageAmounts(2 * 1801.0, 8 * 1801.0, 0.0, 400, 0)
    assert machine.state.usage == {}


def test_what_waits_stands_still_or_ends_is_lost() -> None:
    machine = MachineHarness(METERED, now=1000.0)
    machine.idle("n1", "n2")
    machine.submit(job_spec())
    machine.plan(j1="n1 n2")
    machine.now += 10.0
    machine.confirm()
    machine.now += 100.0
    machine(Progressed("j000001", 50, stalled=True, seconds=40.0))
    machine.now += 5.0
    machine(Progressed("j000001", 60, stalled=False))
    machine.leave("n2")
    machine.now += 7.0
    assert machine.used("j000001") == UsageAmounts(2 * 115.0 + 7.0, 0.0, 2 * 15.0, 60, 1)


def test_the_gpus_of_a_node_are_known_once_it_has_joined() -> None:
    machine = trains_on("n1 n3")
    machine.now += 10.0
    machine(NodesChanged(frozenset({"n4"}), frozenset(), machine.now, {"n4": 2}))
    machine.plan(j1="n1 n3 n4")
    machine.now += 10.0
    assert machine.used("j000001").gpu_seconds == 4 * 10.0 + 6 * 10.0
    # After a start, the number that was known counts until the nodes are told again.
    machine.state = replace(machine.state, idle=None, gpus={})
    machine.leave("n3")
    machine(IdleSetSeen(frozenset(("n1", "n4")), {"n1": 8, "n4": 2}))
    machine.now += 10.0
    assert machine.used("j000001").gpu_seconds == 4 * 10.0 + 6 * 10.0 + 10 * 10.0


def test_a_step_of_the_clock_is_not_charged() -> None:
    machine = trains_on("n1")
    machine.now += 60.0 + 3600.0
    machine(ClockStepped(3600.0))
    machine.now += 60.0 - 7200.0
    machine(ClockStepped(-7200.0))
    machine.now += 60.0
    assert machine.used("j000001").node_seconds == 180.0


def test_replays_and_simulations_keep_no_usage() -> None:
    machine = MachineHarness(now=1000.0)
    machine.idle("n1")
    machine.submit(job_spec())
    machine.plan(j1="n1")
    machine.end(completion=Completion())
    assert (machine.usage, machine.state.usage, machine.state.usage_day) == ({}, {}, 0)
