from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.machine.gpu_units import GpuShare, node_of_unit, unit_name
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.sources.schedulers.availability import (
    Forecast,
    NodeReservation,
    NodeStates,
    PlannedStart,
    UnreadableError,
    available_nodes,
)
from malletrain.scavenger.sources.schedulers.pbs import pbs_source
from malletrain.scavenger.sources.schedulers.pbs_gpus import parse_gpus
from malletrain.scavenger.sources.schedulers.pbs_hosts import GpuResources
from malletrain.scavenger.sources.schedulers.settings import PbsHoldSettings, PbsSettings
from tests.scavenger.samples import every_sample, recording

NODE_SHARE = GpuShare()
_GIB_KB = 1 << 20


def vnode(
    ngpus: Any = 4,
    used: Any = 0,
    *,
    ncpus: Any = 32,
    used_cpus: Any = 0,
    mem: Any = f"{4 * _GIB_KB}kb",
    used_mem: Any = "0kb",
    state: Any = "free",
    available: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """As `pbsnodes -av -F json` of OpenPBS 23.06 has it."""
    has = {"arch": "linux", "host": "g1", "ncpus": ncpus, "ngpus": ngpus, "mem": mem, "gpu_type": "a100"}
    assigned = {"ncpus": used_cpus, "ngpus": used, "mem": used_mem}
    return {"state": state, "resources_available": has | (available or {}), "resources_assigned": assigned, **more}


def told(*vnodes: dict[str, Any]) -> str:
    """An answer whose first host is g1."""
    nodes = {f"g1[{index}]" if index else "g1": entry for index, entry in enumerate(vnodes)}
    return json.dumps({"timestamp": 1, "pbs_version": "23.06.06", "nodes": nodes})


def parsed(*vnodes: dict[str, Any], share: GpuShare = NODE_SHARE, held: tuple[str, ...] = ()) -> NodeStates:
    return parse_gpus(told(*vnodes), share, lambda: held)


def test_the_gpus_that_nobody_uses_are_idle_units_with_their_share_of_the_host() -> None:
    states = parse_gpus(
        told(vnode(used=1, used_cpus=8, used_mem="1gb")),
        NODE_SHARE,
        pool="pbs",
        gpu_resources=GpuResources(memory_mib={"a100": 40960}),
        topology_resources=("gpu_type",),
    )
    assert states.idle == {"g1.gpu0", "g1.gpu1", "g1.gpu2"}
    assert states.known == {"g1.gpu0", "g1.gpu1", "g1.gpu2", "g1.gpu3"}
    fact = NodeFacts("pbs", "a100", 1, ("linux",), cpus=8, memory_mib=1024, gpu_memory_mib=40960, topology=("a100",))
    assert set(states.facts.values()) == {fact}
    assert states.parts == {"g1": ("g1.gpu0", "g1.gpu1", "g1.gpu2", "g1.gpu3")}


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (vnode(used_cpus=17), 1),  # of 32 CPUs, 8 a GPU
        (vnode(used_mem=f"{_GIB_KB + 1}kb"), 2),
        (vnode(used_mem="4gb"), 0),
        (vnode(used=9), 0),
        (vnode(ngpus=0), 0),
        (vnode(ngpus="4", used="1"), 3),
        (vnode(mem=None, available={"mem": 0}), 4),  # what is not told is not asked for
        (vnode(ncpus=2), 2),  # a CPU is the least
        (vnode(ncpus=0), 0),
        (vnode(state="job-busy"), 0),
        (vnode(state="job-exclusive"), 0),
        (vnode(state="free,busy"), 0),
        (vnode(state="down"), 0),
        (vnode(sharing="default_shared"), 4),
        (vnode(sharing="default_excl"), 4),  # we ask for place=shared
        (vnode(sharing="force_excl"), 0),
        (vnode(sharing="force_exclhost"), 0),
        (vnode(queue="other"), 0),
        (vnode(queue="main"), 4),
        ({"state": "free"}, 0),
    ],
)
def test_how_many_are_idle(entry: dict[str, Any], found: int) -> None:
    states = parse_gpus(told(entry), NODE_SHARE, queues=("main",))
    assert len(states.idle) == found
    assert not states.unclear


@pytest.mark.parametrize("odd", ["four", "4.0", 4.0, True, -1, "-1", None, "", "1e1", [4], {"n": 4}, "٤", "9" * 30])
@pytest.mark.parametrize("where", ["ngpus", "used", "ncpus", "used_cpus"])
def test_a_host_of_which_an_amount_cannot_be_read_is_told_and_not_used(where: str, odd: object) -> None:
    entries = {"g1": vnode(**{where: odd}), "g2": vnode(available={"host": "g2"})}
    states = parse_gpus(json.dumps({"pbs_version": "1", "nodes": entries}), NODE_SHARE)
    assert {node_of_unit(unit) for unit in states.idle} == {"g2"}, "the others are"
    assert "ngpus = " in states.unclear["g1"] or "ncpus = " in states.unclear["g1"]


def test_so_is_one_with_too_many_gpus() -> None:
    assert parsed(vnode(ngpus=9_999)).known
    assert parsed(vnode(ngpus=9_999), vnode(ngpus=2)).unclear == {"g1": "ngpus = 10001"}


@pytest.mark.parametrize("odd", ["much", "-1kb", "100mw", 4.5, True, None, []])
def test_so_is_one_with_odd_memory(odd: object) -> None:
    assert parsed(vnode(used_mem=odd)).unclear["g1"].startswith("mem = ")
    assert not parsed(vnode(mem=odd)).idle


def test_a_host_in_a_state_that_is_not_known_is_told_and_not_used() -> None:
    states = parsed(vnode(), vnode(state="dreaming"))
    assert not states.idle
    assert states.unclear == {"g1": "dreaming"}
    assert len(states.known) == 8
    assert parsed(vnode(), vnode() | {"resources_assigned": "none"}).unclear == {"g1": "resources_assigned = 'none'"}


def test_vnodes_of_a_host_are_counted_together() -> None:
    parent, socket = vnode(ngpus=0, ncpus=0, mem="0kb"), vnode(ngpus=2, ncpus=16, mem="2gb")
    busy = vnode(ngpus=2, ncpus=16, mem="2gb", used=1, used_cpus=4)
    states = parsed(parent, socket, busy)
    assert len(states.idle) == 3
    assert states.units == {"g1[1]": "g1", "g1[2]": "g1"}
    assert next(iter(states.facts.values())).cpus == 8
    assert len(parsed(parent, socket, busy | {"state": "job-exclusive"}).idle) == 2
    offline = parsed(parent, socket, busy | {"state": "offline"})
    assert not offline.idle
    assert offline.offline == offline.known


def test_an_operator_says_what_comes_with_a_gpu() -> None:
    assert len(parsed(vnode(), share=GpuShare(cpus=16)).idle) == 2
    assert len(parsed(vnode(), share=GpuShare(memory_mib=3000)).idle) == 1
    assert not parsed(vnode(), share=GpuShare(cpus=33)).idle
    assert not parsed(vnode(mem=0), share=GpuShare(memory_mib=1)).idle


@given(st.integers(1, 9), st.integers(0, 9), st.sets(st.integers(0, 8)), st.integers(0, 40))
def test_no_more_than_are_free_and_none_that_is_held(gpus: int, used: int, held: set[int], used_cpus: int) -> None:
    ours = tuple(unit_name("g1", number) for number in held)
    found = parsed(vnode(gpus, used, used_cpus=used_cpus), held=ours).idle
    assert len(found) <= max(0, gpus - used)
    assert not found & set(ours)
    assert all(node_of_unit(unit) == "g1" for unit in found)


def test_what_is_planned_or_reserved_for_a_host_ends_all_its_gpus() -> None:
    entries = {
        "g1": vnode(available={"ngpus": 0}),
        "g1[0]": vnode(),
        "g2": vnode(available={"host": "g2"}, resv=["R1.head"]),
    }
    states = parse_gpus(json.dumps({"pbs_version": "1", "nodes": entries}), NODE_SHARE)
    coming = Forecast((PlannedStart("7", 500.0, ("g1[0]",)),), (NodeReservation("R1.head", 50.0, 900.0, ("g2",)),))
    found = available_nodes(states, coming, 100.0)
    assert found.idle == set(states.parts["g1"])
    assert found.ends == dict.fromkeys(states.parts["g1"], 500.0)
    assert found.reserved == dict.fromkeys(states.parts["g2"], 100.0)
    unknown = available_nodes(states, Forecast(reservations_known=False), 100.0)
    assert unknown.idle == set(states.parts["g1"]), "a reservation of which no start is known may be now"


def test_an_answer_of_another_form_is_dropped() -> None:
    for text in (
        "",
        "[]",
        "{}",
        json.dumps({"pbs_version": "1", "nodes": []}),
        told({"state": None}),
        told(vnode())[:-9],
    ):
        with pytest.raises(UnreadableError):
            parse_gpus(text, NODE_SHARE)


def test_hosts_of_every_recorded_pbs_can_be_read() -> None:
    states = parse_gpus(recording("pbsnodes.json"), NODE_SHARE)
    assert {node_of_unit(unit) for unit in states.idle} >= {"p1", "p18"}
    read = 0
    for path in every_sample():
        if "/pbs/" in str(path) and path.name.startswith("pbsnodes") and path.suffix == ".json":
            parse_gpus(path.read_text(errors="replace"), NODE_SHARE)
            read += 1
    assert read


def test_gpus_need_placeholders_and_patterns_name_their_hosts() -> None:
    with pytest.raises(ValueError, match=r"expected hold\.queue where units are gpus"):
        PbsSettings(units="gpus")
    section = PbsSettings(units="gpus", exclude=("g2",), hold=PbsHoldSettings(queue="scavenge"))
    source = pbs_source(section, SystemClock())
    assert [query.name for query in source.queries.all()] == ["nodes", "queue", "reservations"]
