"""The history of the dashboard: whatever happens, node-seconds add up and fragments do not overlap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from malletrain.dashboard.figures.colours import LIGHT, THEMES
from malletrain.dashboard.figures.columns import delta_of, fragment_columns, jobs_in_words
from malletrain.dashboard.pages.markup import Cell, Regions, Row, changes, row_cells
from malletrain.dashboard.pages.plan_values import values_of
from malletrain.dashboard.pages.selection import Selection
from malletrain.dashboard.pages.views import node_rows
from malletrain.model.node_use import NodeUse
from malletrain.observer.accounting import at
from malletrain.observer.facts import HeldFact, NodeFact, StallFact
from malletrain.observer.history import KEPT_S, USES, History, changed_fragments
from malletrain.observer.job_facts import JobFact
from malletrain.observer.past import past_of, with_past
from malletrain.observer.updates import jobs_changed, nodes_changed, stalls_measured

START = 1_000_000_020.0
NAMES = ("n1", "n2", "n3")


def begun() -> History:
    history = nodes_changed(History(), [], [], START, snapshot=True)
    return jobs_changed(history, [], START, snapshot=True)


STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "job"]), st.sets(st.sampled_from(NAMES)), st.floats(0.0, 200.0)),
    max_size=20,
)


@given(STEPS)
def test_node_seconds_add_up_and_fragments_do_not_overlap(steps: list[tuple[str, set[str], float]]) -> None:
    history, now, idle, offered = begun(), START, set[str](), 0.0
    for kind, nodes, seconds in steps:
        now, offered, before = now + seconds, offered + seconds * len(idle), history
        if kind == "join":
            idle |= nodes
            history = nodes_changed(history, [NodeFact(name, now) for name in nodes], [], now)
        elif kind == "leave":
            idle -= nodes
            history = nodes_changed(history, [], nodes, now)
        else:
            held = frozenset(nodes)
            history = jobs_changed(history, [JobFact("j1", state="RUNNING", commanded=held, confirmed=held)], now)
        found = changed_fragments(before, history)
        assert found is not None
        assert found[1] == len(before.fragments)
        assert sum(history.counts) == len(idle)
    total = sum(minute.idle for minute in history.minutes)
    assert abs(total - offered) < 1e-3
    last: dict[str, float] = {}
    for fragment in history.fragments:
        assert fragment.start >= last.get(fragment.node, 0.0)
        last[fragment.node] = float("inf") if fragment.end is None else fragment.end


def test_a_stall_is_taken_from_what_counted_as_training_once() -> None:
    held = frozenset({"n1", "n2"})
    history = nodes_changed(begun(), [NodeFact("n1", START), NodeFact("n2", START)], [], START)
    history = jobs_changed(history, [JobFact("j1", state="RUNNING", commanded=held, confirmed=held)], START)
    history = at(history, START + 100.0)
    stall = StallFact("j1", 1, 2, 10.0, START + 50.0)
    for _ in range(2):
        history = stalls_measured(history, [stall])
    total = dict(zip(USES, map(sum, zip(*(m.node_seconds for m in history.minutes), strict=True)), strict=True))
    assert abs(total[NodeUse.STALLED] - 20.0) < 1e-6
    assert abs(total[NodeUse.TRAINING] - 180.0) < 1e-6


def test_the_journal_fills_the_time_before() -> None:
    history = nodes_changed(begun(), [NodeFact("n1", START - 100.0)], [], START)
    rows = [HeldFact(START - 60.0, "j1", frozenset({"n1"})), HeldFact(START - 20.0, "j1", frozenset())]
    found = with_past(history, past_of(history, rows)).fragments
    assert [(item.job_id, item.start - START) for item in found] == [
        ("", -100.0),
        ("j1", -60.0),
        ("", -20.0),
    ]
    assert found[-1].end is None


def test_what_is_older_than_a_day_is_forgotten() -> None:
    history = begun()
    for number in range(2000):
        names = [NodeFact("n1", START)] if number % 2 == 0 else []
        history = nodes_changed(history, names, [] if names else ["n1"], START + 100.0 * number)
    assert len(history.minutes) <= KEPT_S / 60.0 + 3
    assert len(history.fragments) < KEPT_S / 200.0 + 300


def test_what_others_wrote_is_escaped_and_only_changed_rows_are_sent() -> None:
    first, second = Row("a", (Cell("<b>"),)), Row("b", (Cell("2"),))
    assert row_cells(first) == "<td>&lt;b&gt;</td>"
    before = Regions({}, {"t": (first, second)})
    assert changes(before, before) == []
    assert changes(before, Regions({}, {"t": (first, Row("b", (Cell("3"),)))})) == [("b", "<td>3</td>")]


def test_an_address_keeps_the_selection_and_ignores_nonsense() -> None:
    found = Selection.of({"job": [b"j000012"], "span": [b"21600"], "until": [b"nan"], "node": [b"\x00"]})
    assert (found.job, found.span, found.until, found.node) == ("j000012", 21600.0, None, "")
    assert found.link("job") == "/job?job=j000012&span=21600"


def test_columns_are_sent_as_what_changed() -> None:
    delta = delta_of({"a": [1.0, 2.0]}, {"a": [1.0, 3.0, 4.0]})
    assert (delta.patch, delta.added, delta.whole) == ({"a": [(1, 3.0)]}, {"a": [4.0]}, None)
    assert delta_of({"a": [1.0, 2.0]}, {"a": [1.0]}).whole == {"a": [1.0]}


def test_the_price_of_a_node_is_what_one_more_adds() -> None:
    from malletrain.allocator.problem.allocation_problem import AllocationProblem, JobDemand
    from malletrain.model.scaling import ScalingPoint

    curve = (ScalingPoint(1, 10.0), ScalingPoint(4, 31.0))
    jobs = tuple(JobDemand(name, 1, 4, curve) for name in ("j1", "j2"))
    found = values_of(AllocationProblem(("a", "b", "c"), 10.0, jobs), {"j1": 2, "j2": 1})
    assert abs(found.next_node - 70.0) < 1e-6
    assert found.jobs[0].one_more is not None
    assert abs(found.jobs[0].one_more - 70.0) < 1e-6


def members(**held: set[str]) -> list[JobFact]:
    return [
        JobFact(name, state="RUNNING", commanded=frozenset(gpus), confirmed=frozenset(gpus), fleet="f1")
        for name, gpus in held.items()
    ]


def test_members_of_a_fleet_share_the_rows_of_their_nodes() -> None:
    history = nodes_changed(begun(), [NodeFact(name, START) for name in NAMES], [], START)
    history = jobs_changed(history, members(j1={"n1#0", "n2#0"}, j2={"n1#1"}), START + 10.0)
    history = jobs_changed(history, members(j1={"n2#0"}), START + 20.0)
    assert {fragment.node for fragment in history.fragments} == set(NAMES)
    ofn1 = [(item.jobs, item.start - START) for item in history.fragments if item.node == "n1"]
    assert ofn1 == [((), 0.0), (("j1", "j2"), 10.0), (("j2",), 20.0)]
    assert dict(zip(USES, history.counts, strict=True))[NodeUse.TRAINING] == 2
    labels: dict[str, int] = {}
    shown = fragment_columns(history.fragments, dict.fromkeys(NAMES, 0), labels, {}, THEMES[LIGHT], "j2", START)
    assert "j1, j2" in {list(labels)[place] for place in shown["label"]}
    whole = [place < len(THEMES[LIGHT].palette) // 2 for place in shown["colour"]]
    assert whole == ["j2" in fragment.jobs for fragment in history.fragments]
    rows = {row.id: row.cells[1].text for row in node_rows(history, THEMES[LIGHT], Selection())}
    assert rows == {"node-n1": "j2", "node-n2": "j1", "node-n3": "none"}


def test_a_gpu_counts_as_its_share_of_a_node() -> None:
    history = nodes_changed(begun(), [NodeFact("n1", START, gpu_count=4), NodeFact("n2", START)], [], START)
    boots = JobFact("j2", state="STARTING", commanded=frozenset({"n1#2"}), fleet="f1")
    history = jobs_changed(history, [*members(j1={"n1#0", "n1#1"}), boots], START)
    counts = dict(zip(USES, history.counts, strict=True))
    assert (counts[NodeUse.TRAINING], counts[NodeUse.BOOTING], counts[NodeUse.UNASSIGNED]) == (0.5, 0.25, 1.25)


def test_more_gpus_than_a_node_is_known_to_have_are_one_node() -> None:
    history = nodes_changed(begun(), [NodeFact("n1", START)], [], START)
    history = jobs_changed(history, members(j1={"n1#0"}, j2={"n1#1"}), START)
    assert dict(zip(USES, history.counts, strict=True))[NodeUse.TRAINING] == 1.0


def test_a_stall_of_gpus_takes_their_share_of_nodes() -> None:
    history = nodes_changed(begun(), [NodeFact("n1", START, gpu_count=4)], [], START)
    history = at(jobs_changed(history, members(j1={"n1#0", "n1#1"}), START), START + 100.0)
    history = stalls_measured(history, [StallFact("j1", 1, 2, 10.0, START + 50.0)])
    total = dict(zip(USES, map(sum, zip(*(m.node_seconds for m in history.minutes), strict=True)), strict=True))
    assert abs(total[NodeUse.STALLED] - 5.0) < 1e-6
    assert abs(total[NodeUse.TRAINING] - 45.0) < 1e-6
    assert abs(total[NodeUse.UNASSIGNED] - 50.0) < 1e-6


def test_the_journal_of_members_fills_the_time_before() -> None:
    rows = [
        HeldFact(START - 60.0, "j1", frozenset({"n1#0", "n1#1"})),
        HeldFact(START - 40.0, "j2", frozenset({"n1#2"})),
        HeldFact(START - 30.0, "j1", frozenset({"n1#0"})),  # still both
        HeldFact(START - 20.0, "j1", frozenset()),
    ]
    found = with_past(begun(), past_of(begun(), rows)).fragments
    assert [(item.jobs, item.start - START, item.end) for item in found] == [
        (("j1",), -60.0, START - 40.0),
        (("j1", "j2"), -40.0, START - 20.0),
        (("j2",), -20.0, START),
    ]


def test_many_members_of_one_node_are_counted() -> None:
    assert jobs_in_words([f"j{number}" for number in range(10)]).endswith("j7 and 2 more")
