from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.idle_history import MOST_UNSTORED, ROWS_PER_SNAPSHOT, IdleHistory, IdleRow, IdleRowKind
from malletrain.allocator.idle_store import IdleStore
from malletrain.runtime.database.migrating import open_database
from tests.support.postgresql import Locate

NAMES = [f"n{number}" for number in range(5)]
CHANGES = st.lists(
    st.tuples(
        st.booleans(), st.lists(st.sampled_from(NAMES), max_size=3), st.lists(st.sampled_from(NAMES), max_size=3)
    ),
    max_size=20,
)


def idle_after(rows: list[IdleRow]) -> set[str]:
    found: set[str] = set()
    for row in rows:
        found = set() if row.kind.whole else found - set(row.left)
        found |= set(row.joined)
    return found


@given(changes=CHANGES)
def test_rows_tell_the_idle_set_after_each_change(changes: list[tuple[bool, list[str], list[str]]]) -> None:
    history, idle = IdleHistory(), set[str]()
    for number, (snapshot, joined, left) in enumerate(changes):
        history.note(float(number), dict.fromkeys(joined, 0.0), left, snapshot=snapshot)
        idle = set(joined) if snapshot else (idle - set(left)) | set(joined)
        assert idle_after(history.unstored()) == idle
    kinds = [row.kind for row in history.unstored()]
    assert kinds[:1] in ([], [IdleRowKind.START])
    assert IdleRowKind.START not in kinds[1:]


def test_the_whole_set_is_repeated_so_that_older_rows_can_go() -> None:
    history = IdleHistory()
    history.note(0.0, {"n0": -5.0}, (), snapshot=True)
    for number in range(2 * ROWS_PER_SNAPSHOT):
        joined, left = ({"n1": float(number)}, ()) if number % 2 == 0 else ({}, ("n1",))
        history.note(float(number), joined, left, snapshot=False)
    whole = [index for index, row in enumerate(history.unstored()) if row.kind.whole]
    assert whole == [0, ROWS_PER_SNAPSHOT + 1]
    assert dict(history.unstored()[whole[1]].joined) == {"n0": -5.0, "n1": float(ROWS_PER_SNAPSHOT)}


def test_rows_that_cannot_be_stored_are_bounded_and_a_whole_set_follows() -> None:
    history = IdleHistory()
    history.note(0.0, {"n0": 0.0}, (), snapshot=True)
    for number in range(MOST_UNSTORED):
        history.note(float(number), {"n1": 0.0}, (), snapshot=False)
    rows = history.unstored()
    assert len(rows) == 1
    assert rows[0].kind is IdleRowKind.ALL
    assert set(rows[0].joined) == {"n0", "n1"}


def test_what_is_stored_is_not_stored_again() -> None:
    history = IdleHistory()
    history.note(0.0, {"n0": 0.0}, (), snapshot=True)
    rows = history.unstored()
    history.note(1.0, {}, ("n0",), snapshot=False)
    history.stored(rows)
    assert [row.left for row in history.unstored()] == [("n0",)]


def test_the_store_gives_back_its_newest_rows(locate: Locate) -> None:
    store = IdleStore(open_database(locate("allocator")), rows_kept=3)
    rows = [IdleRow(0.5, IdleRowKind.START, {"n0": -1.0, "n1": 0.5})]
    rows += [IdleRow(float(number), IdleRowKind.CHANGE, {f"n{number}": 2.5}, ("n0",)) for number in range(1, 5)]
    store.add(rows[:2])
    assert store.rows() == rows[:2]
    store.add(rows[2:])
    store.add([])
    assert store.rows() == rows[-3:]
