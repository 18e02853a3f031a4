from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.sources.schedulers.availability import Forecast, NodeStates, UnreadableError, available_nodes
from malletrain.scavenger.sources.schedulers.hostlists import MAX_NODES, expand
from malletrain.scavenger.sources.schedulers.slurm_text import (
    parse_classes,
    parse_planned,
    parse_reservations,
    parse_states,
    parse_topology,
)
from tests.scavenger.samples import SLURM_SAMPLES, every_sample, recording, slurm_sample


def at(text: str) -> float:
    return datetime.fromisoformat(f"2030-01-01T{text}+00:00").astimezone(UTC).timestamp()


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("n1", ["n1"]),
        ("n[001-003,7],gpu1", ["n001", "n002", "n003", "n7", "gpu1"]),
        ("rack[1-2]n[08-09]", ["rack1n08", "rack1n09", "rack2n08", "rack2n09"]),
        ("a-b.c_d", ["a-b.c_d"]),
    ],
)
def test_node_lists_are_expanded(expression: str, names: list[str]) -> None:
    assert sorted(expand(expression)) == sorted(names)


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "n[",
        "n[1-3",
        "n]1[",
        "n[3-1]",
        "n[a-b]",
        "@all",
        "n*",
        "a&b",
        "a!b",
        "a^b",
        "n 1",
        "n[1-2,]",
        ",n1",
        "n[0-999999999]",
        "n[0-999][0-999]",
        "n[1/2]",
        "a\nb",
    ],
)
def test_what_is_no_node_list_is_refused_before_anything_is_made_of_it(expression: str) -> None:
    with pytest.raises(UnreadableError):
        expand(expression)


def test_the_largest_machine_is_expanded() -> None:
    assert len(expand(f"n[1-{MAX_NODES}]")) == MAX_NODES


def test_only_whole_words_are_idle() -> None:
    states = parse_states(recording("sinfo_states.txt"))
    assert states.idle == {"g01", "g02", "g03", "g04", "c001", "c002"}
    assert {"g05", "g06", "g07", "c003", "c012", "c023"} <= states.known


def test_nodes_that_an_operator_has_taken_out_of_use_are_told_apart() -> None:
    text = "draining|a\ndrained*|b\nmaint|c\nallocated|d\ndown*|e\nidle|f\nfailing|g\nallocated@|h\n"
    assert parse_states(text).offline == {"a", "b", "c", "g"}


def test_two_partitions_are_two_pools_and_a_node_belongs_to_the_first() -> None:
    states = parse_states(recording("sinfo_two_partitions.txt"), {"gpu": "gpu", "cpu": "cpu"})
    assert states.idle == {"g01", "g02", "c001"}
    assert {name: facts.pool for name, facts in states.facts.items()} == {
        "g01": "gpu",
        "g02": "gpu",
        "g03": "gpu",
        "c001": "cpu",
        "c002": "cpu",
    }
    with pytest.raises(UnreadableError):
        parse_states("other|idle|n1\n", {"gpu": "gpu"})


def test_a_node_with_two_states_is_not_idle() -> None:
    assert parse_states("idle|n[1-3]\ndrained|n2\n").idle == {"n1", "n3"}


@pytest.mark.parametrize("text", ["idle|n1", "idle n1\n", "idle|n1|\n", "|n1\n", "idle|n[1\n", "IDLE n\n", "1|n1\n"])
def test_answers_that_are_cut_short_or_garbage_are_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        parse_states(text)


@pytest.mark.parametrize("state", ["hibernating", "?", "17", "", "idle+cloud", "idle2", "down 5", "IDLE"])
def test_a_node_in_an_unknown_state_leaves_the_others(state: str) -> None:
    states = parse_states(f"idle|n[1-2]\n{state}|n[2-3]\ndown*|n4\n")
    assert states.idle == {"n1"}
    assert states.known == {"n1", "n2", "n3", "n4"}
    assert states.unclear == {"n2": state, "n3": state}


def test_nothing_is_an_answer() -> None:
    assert parse_states("") == NodeStates()
    assert parse_states("n/a|\n").idle == frozenset()
    assert parse_reservations("No reservations in the system\n") == ()


def test_planned_starts_and_reservations() -> None:
    planned = parse_planned(recording("squeue_pending.txt"))
    assert [(entry.job, entry.start, entry.nodes) for entry in planned] == [
        ("41", at("10:00:00"), ("g01", "g02")),
        ("43", at("09:30:00"), ("g02",)),
    ]
    (maintenance,) = parse_reservations(recording("scontrol_reservations.txt"))
    assert (maintenance.start, maintenance.end) == (at("11:00:00"), at("13:00:00"))
    assert maintenance.nodes == ("g01", "c001", "c002") or set(maintenance.nodes) == {"g01", "c001", "c002"}


def test_the_earliest_known_end_counts_and_a_running_reservation_takes_the_node() -> None:
    states = parse_states(recording("sinfo_states.txt"))
    horizon = Forecast(
        parse_planned(recording("squeue_pending.txt")), parse_reservations(recording("scontrol_reservations.txt"))
    )
    before = available_nodes(states, horizon, at("09:00:00"))
    assert before.ends == {
        "g01": at("10:00:00"),
        "g02": at("09:30:00"),
        "c001": at("11:00:00"),
        "c002": at("11:00:00"),
    }
    assert before.idle == states.idle
    assert available_nodes(states, horizon, at("09:00:00"), frozenset({"43"})).ends["g02"] == at("10:00:00")
    during = available_nodes(states, horizon, at("11:30:00"))
    assert during.idle == states.idle - {"g01", "c001", "c002"}
    # A start that is overdue may come at any moment.
    assert during.ends["g02"] == at("11:30:00")


def test_classes() -> None:
    classes = parse_classes(recording("sinfo_classes.txt"))
    assert classes["g01"] == NodeFacts("", "a100", 4, ("nvlink", "ib"), 64, 515000)
    assert classes["g01"].node_class == "a100x4"
    assert classes["g03"].node_class == "v100+a100x4"
    assert classes["c001"].node_class == "cpu"
    assert classes["h1"].node_class == "gpux3"
    assert (classes["h1"].cpus, classes["h1"].memory_mib) == (1, 0)  # 1 MiB: nobody has told Slurm


def test_the_memory_of_gpus_is_what_settings_say_of_their_kind() -> None:
    classes = parse_classes(recording("sinfo_classes.txt"), {"A100": 81920, "gpu": 8192})
    assert {name: classes[name].gpu_memory_mib for name in ("g01", "g03", "c001", "h1")} == {
        **{"g01": 81920, "h1": 8192, "c001": 0},
        "g03": 0,  # of one of its two kinds it is not known
    }
    both = parse_classes(recording("sinfo_classes.txt"), {"a100": 81920, "v100": 32768})
    assert both["g03"].gpu_memory_mib == 32768


@pytest.mark.parametrize(("cpus", "count"), [("16", 16), ("16+", 16), ("(null)", 0), ("", 0), ("9" * 99, 0), ("-1", 0)])
def test_amounts_that_can_not_be_read_are_not_known(cpus: str, count: int) -> None:
    facts = parse_classes(f"(null)|ib|{cpus}|{cpus}|n1\n")["n1"]
    assert (facts.cpus, facts.memory_mib, facts.features) == (count, count, ("ib",))


@pytest.mark.parametrize("name", SLURM_SAMPLES)
def test_recorded_clusters(name: str) -> None:
    sample = slurm_sample(name)
    states = parse_states(sample.states_text)
    assert states.known == sample.states.keys()
    assert not states.idle & sample.never_idle
    assert states.idle == sample.states.keys() - sample.never_idle
    planned = parse_planned(sample.planned_text)
    horizon = Forecast(planned, parse_reservations(sample.reservations_text))
    found = available_nodes(states, horizon, 0.0)
    assert found.ends.keys() <= found.idle
    if name == "multi32_queue":
        assert len(planned) == 25
        assert found.idle == {f"n{number:03d}" for number in range(19, 24)}
        assert found.ends["n019"] == datetime(2026, 11, 21, 3, 58, 44, tzinfo=UTC).timestamp()


@given(data=st.data())
@pytest.mark.parametrize("name", [*SLURM_SAMPLES, "own"])
def test_a_damaged_answer_never_makes_a_node_idle(name: str, data: st.DataObject) -> None:
    if name == "own":
        text = recording("sinfo_states.txt")
        never = parse_states(text).known - parse_states(text).idle
    else:
        sample = slurm_sample(name)
        text, never = sample.states_text, frozenset(sample.never_idle)
    damaged = data.draw(damaged_lines(text))
    try:
        idle = parse_states(damaged).idle
    except UnreadableError:
        return
    assert not idle & never


@st.composite
def damaged_lines(draw: st.DrawFn, text: str) -> str:
    """Cut anywhere, lines lost, doubled, moved, run together, with other suffixes, or with garbage in between."""
    lines = text.splitlines(keepends=True)
    lines = draw(st.permutations(lines))
    lines = lines[: draw(st.integers(0, len(lines)))]
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(lines)))
        garbage = st.one_of(st.text(max_size=20), st.sampled_from(["\n", "\0", "idle", "idle|", "slurm_load: error\n"]))
        lines.insert(place, draw(garbage))
    if lines and draw(st.booleans()):
        place = draw(st.integers(0, len(lines) - 1))
        state, bar, nodes = lines[place].partition("|")
        lines[place] = state + draw(st.sampled_from("*~#!%$@^-+ ")) + bar + nodes
    whole = "".join(lines)
    return whole[: draw(st.integers(0, len(whole)))] if draw(st.booleans()) else whole


@given(text=st.one_of(st.text(), st.text(alphabet="idle|n[]0123456789-,\n*N/A(ul)T: =SEdRvami"), st.just("x" * 10_000)))
def test_no_text_breaks_a_parser(text: str) -> None:
    for parse in (parse_states, parse_planned, parse_reservations, parse_classes, parse_topology):
        try:
            parse(text)
        except UnreadableError:
            continue


def test_no_sample_of_anything_breaks_a_parser() -> None:
    for path in every_sample():
        text = path.read_text(errors="replace")
        for parse in (parse_states, parse_planned, parse_reservations, parse_classes, parse_topology):
            try:
                parse(text)
            except UnreadableError:
                continue


@pytest.mark.parametrize(
    ("gres", "kind", "count"),
    [
        ("gpu:2", "gpu", 2),
        ("gpu", "gpu", 1),
        ("gpu:a100:4(S:0-1),craynetwork:4", "a100", 4),
        ("gpu:2080ti:4", "2080ti", 4),
        ("gpu:3090:2(S:0)", "3090", 2),
        ("gpu:1g.10gb:7,gpu:a100:1", "1g.10gb+a100", 8),
        ("(null)", "", 0),
        ("craynetwork:4", "", 0),
    ],
)
def test_gpus_of_a_node(gres: str, kind: str, count: int) -> None:
    facts = parse_classes(f"{gres}|(null)|1|1|n1\n")["n1"]
    assert (facts.gpu_type, facts.gpus) == (kind, count)
