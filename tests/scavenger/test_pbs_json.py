from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.sources.schedulers.availability import Forecast, UnreadableError, available_nodes
from malletrain.scavenger.sources.schedulers.pbs_hosts import GpuResources
from malletrain.scavenger.sources.schedulers.pbs_json import parse_jobs, parse_reservations, parse_vnodes
from tests.scavenger.samples import every_sample, pbs_sample, recording
from tests.support.shared import shared_path


def at(hour: int, minute: int = 0) -> float:
    return datetime(2030, 1, 1, hour, minute, tzinfo=UTC).timestamp()


def test_free_is_not_idle() -> None:
    states = parse_vnodes(recording("pbsnodes.json"), pool="pbs")
    # Still with those that are reserved for later: available_nodes decides.
    assert states.idle == {"p1", "p3", "p8", "p9", "p15", "p16", "p18"}
    assert states.reserved_by == {"p8": ("R2.head",), "p9": ("R2.head", "R3.head"), "p15": ("R9.head",)}
    assert states.facts["p1"].node_class == "a100x4"
    assert states.facts["p18"].gpus == 8
    assert states.facts["p18"].pool == "pbs"


def vnode(**available: object) -> dict[str, object]:
    return {"state": "free", "resources_available": {"ncpus": 8, **available}}


@pytest.mark.parametrize(
    ("told", "mib"),
    [
        ("64gb", 65536),
        ("24684096kb", 24105),
        ("1TB", 1 << 20),
        ("2097152", 2),
        ("1m", 1),
        ("9" * 18 + "pb", 1 << 30),
        ("100mw", 0),
        ("-1gb", 0),
        ("much", 0),
        (64, 0),
        (None, 0),
    ],
)
def test_memory_of_nodes(told: object, mib: int) -> None:
    text = json.dumps({"pbs_version": "1", "nodes": {"p1": vnode(mem=told)}})
    facts = parse_vnodes(text).facts["p1"]
    assert (facts.cpus, facts.memory_mib, facts.gpu_memory_mib) == (8, mib, 0)


def test_memory_of_gpus_is_told_by_a_resource_or_by_their_kind() -> None:
    vnodes = {
        "told": vnode(ngpus=2, gpu_type="a100", gpu_memory="40gb"),
        "kind": vnode(ngpus=2, gpu_type="a100"),
        "none": vnode(gpu_memory="40gb"),
        "some": vnode(ngpus=1),
        "two[0]": vnode(host="two", ngpus=1, gpu_memory="40gb", mem="32gb"),
        "two[1]": vnode(host="two", ngpus=1, gpu_memory="16gb", mem="32gb"),
        "two[2]": vnode(host="two", mem="1gb"),
        "half[0]": vnode(host="half", ngpus=1, gpu_memory="40gb"),
        "half[1]": vnode(host="half", ngpus=1, gpu_type="h100"),
    }
    text = json.dumps({"pbs_version": "1", "nodes": vnodes})
    resources = GpuResources(memory_mib={"A100": 81920, "gpu": 8192})
    facts = parse_vnodes(text, gpu_resources=resources).facts
    expected = {"told": 40960, "kind": 81920, "none": 0, "some": 8192, "two": 16384, "half": 0}
    assert {name: about.gpu_memory_mib for name, about in facts.items()} == expected
    assert (facts["two"].memory_mib, facts["two"].cpus) == (66560, 24)
    assert parse_vnodes(text).facts["kind"].gpu_memory_mib == 0


def test_nodes_of_another_queue_are_left_alone() -> None:
    states = parse_vnodes(recording("pbsnodes.json"), queues=("main",))
    assert "p16" not in states.idle
    assert "p1" in states.idle
    assert "p16" in parse_vnodes(recording("pbsnodes.json"), queues=("debug",)).idle


def test_estimates_and_reservations_end_idleness() -> None:
    states = parse_vnodes(recording("pbsnodes.json"))
    planned = parse_jobs(recording("qstat.txt"))
    assert parse_jobs(recording("qstat.json")) == planned
    assert [(entry.job, entry.start) for entry in planned] == [("20.head", at(10))]
    horizon = Forecast(planned, parse_reservations(recording("pbs_rstat.txt")))
    found = available_nodes(states, horizon, at(9))
    # It is not known when R9 begins.
    assert found.idle == {"p1", "p3", "p8", "p9", "p16", "p18"}
    assert found.ends == {"p1": at(10), "p8": at(11), "p9": at(10, 30), "p18": at(10)}
    assert found.reserved["p9"] == at(10, 30)
    assert available_nodes(states, horizon, at(10, 45)).reserved["p9"] == at(10, 45), "it has begun"
    assert available_nodes(states, horizon, at(10, 45)).idle == {"p1", "p3", "p8", "p16", "p18"}
    unknown = available_nodes(states, Forecast(planned, (), reservations_known=False), at(9))
    assert unknown.idle == {"p1", "p3", "p16", "p18"}


def test_a_live_server_after_the_begin_of_a_reservation() -> None:
    text = shared_path("schedulers/samples/pbs-live/pbsnodes_av_reservation_running.json").read_text()
    states = parse_vnodes(text)
    assert states.offline == {"pn001", "pn002"}
    assert not states.idle & states.offline
    taken_out = text.replace('"job-exclusive"', '"job-exclusive,offline"')
    assert states.offline < parse_vnodes(taken_out).offline


def test_a_host_of_several_vnodes_is_one_node() -> None:
    states = parse_vnodes(shared_path("schedulers/samples/pbs-live/pbsnodes_av_multivnode.json").read_text())
    assert "pn006" in states.known
    assert not any("[" in name for name in states.known)


def test_the_recorded_cluster() -> None:
    states = parse_vnodes(pbs_sample("pbsnodes_av.json"))
    assert states.idle == {"pn009", "pn010", "pn011", "pn012"}
    planned = parse_jobs(pbs_sample("qstat_fw.txt"))
    # Recorded a moment later.
    assert parse_jobs(pbs_sample("qstat_f.json"))[0] == planned[0]
    reservations = parse_reservations(pbs_sample("pbs_rstat_f.txt"))
    assert [entry.job for entry in planned] == ["5.pbshost", "6.pbshost"]
    assert [entry.nodes for entry in reservations] == [("pn007",), ("pn012",)]
    recorded = datetime(2026, 11, 21, 3, 13, 11, tzinfo=UTC).timestamp()
    found = available_nodes(states, Forecast(planned, reservations), recorded)
    assert found.idle == states.idle
    assert set(found.ends.values()) == {datetime(2026, 11, 21, 3, 21, 4, tzinfo=UTC).timestamp()}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "nonsense",
        '{"pbs_version": "1", "nodes": []}',
        '{"pbs_version": "1", "nodes": {"a": {}}}',
        '{"pbs_version": "1", "nodes": {"a": {"state": 3}}}',
        '{"pbs_version": "1", "nodes": {"a": null}}',
        "[" * 99999,
    ],
)
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        parse_vnodes(text)


def test_a_vnode_in_an_unknown_state_takes_its_host_and_no_other() -> None:
    vnodes = {
        "n1": {"state": "free"},
        "n2": {"state": "hibernating"},
        "n3": {"state": 3},
        "n4": None,
        "n5": {"jobs": []},
        "n6[0]": {"state": "free", "resources_available": {"host": "n6"}},
        "n6[1]": {"state": "free,odd", "resources_available": {"host": "n6"}},
        "n7[0]": {"state": "free", "resources_available": {"host": "n7"}},
        "n7[1]": "lost",
        "n8": {"state": "offline,down"},
    }
    states = parse_vnodes(json.dumps({"pbs_version": "1", "nodes": vnodes}))
    assert states.idle == {"n1"}
    assert states.known == {f"n{number}" for number in range(1, 9)}
    assert states.unclear == {
        "n2": "hibernating",
        "n3": "3",
        "n4": "no state",
        "n5": "no state",
        "n6": "free,odd",
        "n7": "no state",
    }
    assert states.offline == {"n8"}


def test_a_server_without_nodes_or_jobs_or_reservations_is_an_answer() -> None:
    empty = '{"timestamp": 1, "pbs_version": "23.06.06", "pbs_server": "head"}'
    assert parse_vnodes(empty).known == frozenset()
    assert parse_jobs(empty) == ()
    assert parse_reservations("") == ()


@given(data=st.data())
def test_a_damaged_answer_never_makes_a_node_idle(data: st.DataObject) -> None:
    text = recording("pbsnodes.json")
    never = parse_vnodes(text).known - parse_vnodes(text).idle
    kind = data.draw(st.sampled_from(["cut", "values", "lost"]))
    if kind == "cut":
        damaged = text[: data.draw(st.integers(0, len(text) - 2))]
    else:
        content: Any = json.loads(text)
        for name in data.draw(st.lists(st.sampled_from(sorted(content["nodes"])), unique=True, max_size=5)):
            if kind == "lost":
                # Not one vnode of several: the host would look as if it had only the others.
                if "[" not in name:
                    del content["nodes"][name]
                continue
            key = data.draw(st.sampled_from(["resources_available", "queue", "comment", "Mom", "license", "state"]))
            strange = st.one_of(st.none(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))
            if key != "resources_available" or "[" not in name:
                content["nodes"][name][key] = data.draw(strange)
        damaged = json.dumps(content)
    try:
        idle = parse_vnodes(damaged).idle
    except UnreadableError:
        return
    assert not idle & never


@given(text=st.one_of(st.text(), st.text(alphabet='{}[]":,nodesJb1 pv_r\n=RS')))
def test_no_text_breaks_a_parser(text: str) -> None:
    for parse in (parse_vnodes, parse_jobs, parse_reservations):
        try:
            parse(text)
        except UnreadableError:
            continue


def test_no_sample_of_anything_breaks_a_parser() -> None:
    for path in every_sample():
        text = path.read_text(errors="replace")
        for parse in (parse_vnodes, parse_jobs, parse_reservations):
            try:
                parse(text)
            except UnreadableError:
                continue
