from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.history.idle_history import MAX_UNSTORED, ROWS_PER_SNAPSHOT, IdleHistory, IdleRow, IdleRowKind
from malletrain.allocator.history.idle_store import IdleRecording, IdleStore
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.database.migrating import open_database
from malletrain.v1 import resources_pb2, scavenger_pb2
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
    history, idle, rows = IdleHistory(), set[str](), list[IdleRow]()
    for number, (snapshot, joined, left) in enumerate(changes):
        rows.append(history.row(float(number), dict.fromkeys(joined, 0.0), left, snapshot=snapshot))
        idle = set(joined) if snapshot else (idle - set(left)) | set(joined)
        assert idle_after(rows) == idle
    kinds = [row.kind for row in rows]
    assert kinds[:1] in ([], [IdleRowKind.START])
    assert IdleRowKind.START not in kinds[1:]


def test_the_whole_set_is_repeated_so_that_older_rows_can_go() -> None:
    history = IdleHistory()
    rows = [history.row(0.0, {"n0": -5.0}, (), snapshot=True)]
    for number in range(2 * ROWS_PER_SNAPSHOT):
        joined, left = ({"n1": float(number)}, ()) if number % 2 == 0 else ({}, ("n1",))
        rows.append(history.row(float(number), joined, left, snapshot=False))
    whole = [index for index, row in enumerate(rows) if row.kind.whole]
    assert whole == [0, ROWS_PER_SNAPSHOT + 1]
    assert dict(rows[whole[1]].joined) == {"n0": -5.0, "n1": float(ROWS_PER_SNAPSHOT)}


async def test_rows_that_cannot_be_stored_are_bounded_and_a_whole_set_follows(locate: Locate) -> None:
    store = IdleStore(open_database(locate("allocator")), 100_000)
    recording = IdleRecording(store, SystemClock())

    def tell(name: str, *, snapshot: bool = False) -> None:
        node = resources_pb2.Node(name=name)
        recording.record(scavenger_pb2.WatchNodesResponse(joined=[node], snapshot=snapshot))

    tell("n0", snapshot=True)
    for _ in range(MAX_UNSTORED):
        tell("n1")
    await recording.flush()
    (row,) = store.rows()
    assert row.kind is IdleRowKind.ALL
    assert set(row.joined) == {"n0", "n1"}


def test_the_store_gives_back_its_newest_rows(locate: Locate) -> None:
    store = IdleStore(open_database(locate("allocator")), rows_kept=3)
    rows = [IdleRow(0.5, IdleRowKind.START, {"n0": -1.0, "n1": 0.5})]
    rows += [IdleRow(float(number), IdleRowKind.CHANGE, {f"n{number}": 2.5}, ("n0",)) for number in range(1, 5)]
    store.add(rows[:2])
    assert store.rows() == rows[:2]
    store.add(rows[2:])
    store.add([])
    assert store.rows() == rows[-3:]
