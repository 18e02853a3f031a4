"""What-ifs: their addresses, what the page says of them, and the processes that replay them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.dashboard import replays
from malletrain.dashboard.pages import week_views
from malletrain.dashboard.pages.selection import Selection
from malletrain.dashboard.pages.what_if import DAYS, FORWARD_POLICIES, POLICIES, WhatIf
from malletrain.dashboard.replays import Replays
from malletrain.model.what_if import WhatIfComparison
from malletrain.runtime.kernel.documents import from_document

WHAT_IFS = st.builds(
    WhatIf,
    past=st.integers(0, 10**10),
    days=st.sampled_from(list(DAYS.values())),
    forward_s=st.integers(1, 86_400).map(float),
    forward_policy=st.sampled_from(list(FORWARD_POLICIES.values())),
    max_parallel=st.integers(1, 10_000),
    policy=st.sampled_from(list(POLICIES.values())),
)


def outcome(samples: float, rescales: int | None) -> dict[str, Any]:
    return {
        "samples": samples,
        "efficiency": 0.5,
        "bound": 0.75,
        "rescales": rescales,
        "preemptions": rescales,
        "course": [0.0, samples],
    }


FOUND: dict[str, Any] = {
    "times_unix": [1000.0, 4600.0],
    "node_hours": 6.0,
    "held": 0.9,
    "really": outcome(100.0, 3),
    "replay": outcome(110.0, 4),
    "free": outcome(120.0, None),
    "jobs": [
        {"job_id": "j000001", "name": "hers", "owner": "ada", "really": 60.0, "replayed": 66.0},
        {"job_id": "j000002", "name": "his", "owner": "bob", "really": 40.0, "replayed": 44.0},
    ],
    "notes": [],
}
FACT = from_document(WhatIfComparison, FOUND)


@given(what_if=WHAT_IFS)
def test_an_address_keeps_a_what_if(what_if: WhatIf) -> None:
    assert WhatIf.of(what_if.arguments()) == what_if
    arguments = {name: [value.encode()] for name, value in what_if.arguments().items()}
    selection = Selection.of(arguments)
    assert selection.what_if == what_if
    assert "places=" in selection.link("week")
    assert "places=" not in Selection().link("week")


@given(text=st.dictionaries(st.sampled_from(["past", "days", "forward", "horizon", "places", "policy"]), st.text()))
def test_what_is_typed_by_hand_gives_a_valid_what_if_or_none(text: dict[str, str]) -> None:
    found = WhatIf.of(text)
    assert found is None or WhatIf.of(found.arguments()) == found


def test_rows_are_ranked_and_the_past_itself_comes_first() -> None:
    chosen, other = WhatIf(past=1), WhatIf(past=1, forward_s=30.0)
    better = from_document(WhatIfComparison, FOUND | {"replay": outcome(130.0, 5)})
    rows = week_views.outcome_rows(chosen, [(chosen, FACT), (other, better)], Selection(what_if=chosen))
    assert [row.cells[0].text for row in rows] == [
        "what really happened",
        "T_fwd 30 s, 10 jobs at once",
        "T_fwd 120 s, 10 jobs at once",
    ]
    assert [row.chosen for row in rows] == [False, False, True]
    assert [row.cells[3].text for row in rows] == ["–", "+30.0 %", "+10.0 %"]
    assert {(row.cells[1].text, row.cells[-1].text) for row in rows} == {("50.0 %", "75.0 %")}
    assert week_views.outcome_rows(chosen, [], Selection()) == ()
    assert len(week_views.outcome_rows(chosen, [(other, better)], Selection())) == 2


@pytest.mark.parametrize(
    ("user", "role", "names"),
    [("ada", "user", ["hers", "–"]), ("eve", "viewer", ["–", "–"]), ("eve", "operator", ["hers", "his"])],
)
def test_only_ones_own_jobs_have_names(user: str, role: str, names: list[str]) -> None:
    rows = week_views.compared_rows(FACT, user, role, Selection())
    assert [row.cells[1].text for row in rows] == names


def replays_by(program: str) -> Replays:
    """Replays by a Python program."""
    return Replays((sys.executable, "-c", program), lambda: "token", None, WhatIf(), time.time, lambda: None)


def run(program: str, use: Callable[[Replays], Awaitable[None]]) -> None:
    async def both() -> None:
        found = replays_by(program)
        try:
            await use(found)
        finally:
            await found.close()

    asyncio.run(both())


async def ended(found: Replays) -> None:
    async with asyncio.timeout(60):
        while found.running is not None:
            await asyncio.sleep(0.01)


ANSWERS = f"""
import json, sys
asked = json.load(sys.stdin)
assert asked["token"] == "token" and asked["max_parallel"] == 10
print(json.dumps({{"share": 0.5}}), flush=True)
print(json.dumps({{"found": json.loads({json.dumps(json.dumps(FOUND))})}}))
"""
OF_ANOTHER_VERSION = ANSWERS.replace('\\"owner\\"', '\\"weight\\": 1, \\"owner\\"')
WITHOUT_A_FIELD = ANSWERS.replace('\\"notes\\"', '\\"remarks\\"')
WAITS = "import sys; sys.stdin.read(); print('{\"share\": 0.25}', flush=True);\n"
WAITS += "import signal; signal.pause()"


@pytest.mark.processes
def test_a_replay_is_kept_for_whoever_asks_the_same() -> None:
    async def use(found: Replays) -> None:
        what_if = WhatIf(past=found.past())
        found.start(what_if, "ada")
        running = found.running
        assert running is not None
        await ended(found)
        assert found.result_of(what_if) == FACT
        assert found.failure(what_if) == ""
        version = found.version
        found.start(what_if, "eve")
        assert found.running is None
        assert found.version == version
        assert found.of_same_past(what_if) == [(what_if, FACT)]
        assert found.known_past == what_if.past

    run(ANSWERS, use)


@pytest.mark.processes
def test_one_replay_runs_at_a_time_and_can_be_cancelled() -> None:
    async def use(found: Replays) -> None:
        first, second = WhatIf(past=1), WhatIf(past=1, days=1.0)
        found.start(first, "ada")
        async with asyncio.timeout(60):
            while found.running is None or found.running.share == 0:
                await asyncio.sleep(0.01)
        found.start(second, "eve")
        assert found.running.what_if == first
        found.cancel()
        await ended(found)
        assert found.failure(first) == "it was cancelled"
        assert found.result_of(first) is None
        assert found.failure(second) == ""

    run(WAITS, use)


@pytest.mark.processes
def test_a_replay_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "MAX_S", 0.2)

    async def use(found: Replays) -> None:
        found.start(WhatIf(past=1), "ada")
        await ended(found)
        assert found.failure(WhatIf(past=1)).startswith("it took more than")

    run(WAITS, use)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; sys.stdin.read(); sys.exit('past: a time in which jobs trained')", "past: a time in which"),
        ("raise SystemExit(3)", "status 3"),
        ("import sys; sys.stdin.read(); print('nonsense')", "Expecting value"),
        ("import sys; sys.stdin.read(); print('7')", "can't be read"),
        (OF_ANOTHER_VERSION, "jobs[0].weight: expected nothing"),
        (WITHOUT_A_FIELD, "remarks: expected nothing"),
    ],
)
@pytest.mark.processes
def test_a_replay_that_fails_says_why(program: str, why: str) -> None:
    async def use(found: Replays) -> None:
        found.start(WhatIf(past=1), "ada")
        await ended(found)
        assert why in found.failure(WhatIf(past=1))

    run(program, use)
