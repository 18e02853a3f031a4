from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.model.topology import MAX_LEVELS
from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.machine.drains import Drain, DrainSet
from malletrain.scavenger.machine.gpu_units import GpuShare, node_of_unit, path_of_unit, unit_name, units_of
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.sources.schedulers.availability import (
    Forecast,
    NodeReservation,
    PlannedStart,
    UnreadableError,
    available_nodes,
)
from malletrain.scavenger.sources.schedulers.settings import HoldSettings, SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm import slurm_source
from malletrain.scavenger.sources.schedulers.slurm_gpus import parse_gpus
from tests.scavenger.samples import every_sample

NODE_SHARE = GpuShare()


def line(
    name: str = "g1",
    *,
    gres: str = "gpu:a100:4",
    used: str = "gpu:a100:0",
    cpus: int = 32,
    used_cpus: int = 0,
    memory: int = 4000,
    used_memory: int = 0,
    state: str = "MIXED",
    partitions: str = "gpu",
    more: str = "",
) -> str:
    """A node, as `scontrol -o -d show nodes` of 25.05 prints it."""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=8  CPUAlloc={used_cpus} CPUEfctv={cpus} CPUTot={cpus + 2} "
        f"CPULoad=0.18 AvailableFeatures=ib,x ActiveFeatures=ib Gres={gres} GresDrain=N/A GresUsed={used} "
        f"NodeAddr=10.0.0.1 OS=Linux 6.1 #1 SMP  RealMemory={memory} AllocMem={used_memory} FreeMem=20245 Sockets=1 "
        f"State={state} ThreadsPerCore=1 Partitions={partitions}  CfgTRES=cpu=8,mem=16000M AllocTRES= {more}\n"
    )


def idle(text: str, share: GpuShare = NODE_SHARE, held: tuple[str, ...] = ()) -> list[str]:
    return sorted(parse_gpus(text, ["gpu"], share, lambda: held).idle)


def test_the_gpus_that_nobody_uses_are_idle_units_with_their_share_of_the_node() -> None:
    states = parse_gpus(line(used="gpu:a100:1(IDX:2)", used_cpus=8, used_memory=1000), ["gpu"], NODE_SHARE)
    assert states.idle == {"g1.gpu0", "g1.gpu1", "g1.gpu2"}
    assert states.known == {"g1.gpu0", "g1.gpu1", "g1.gpu2", "g1.gpu3"}
    assert set(states.facts.values()) == {NodeFacts("gpu", "a100", 1, ("ib",), cpus=8, memory_mib=1000)}
    assert states.parts == {"g1": ("g1.gpu0", "g1.gpu1", "g1.gpu2", "g1.gpu3")}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (line(used_cpus=17), 1),  # of 32 CPUs, 8 a GPU
        (line(used_memory=1001), 2),
        (line(used_memory=4000), 0),
        (line(used="gpu:a100:2,gpu:v100:1", gres="gpu:a100:2,gpu:v100:2"), 1),
        (line(used="gpu:9"), 0),
        (line(gres="gpu:4(S:0-1)", used="gpu:(null):1(IDX:0)"), 3),
        (line(gres="(null)", used="gpu:0"), 0),
        (line(gres="fpga:4", used="fpga:0"), 0),
        (line(state="IDLE"), 4),
        (line(state="IDLE+PLANNED"), 4),
        (line(state="ALLOCATED"), 4),
        (line(state="MIXED*"), 0),
        (line(state="IDLE+DRAIN"), 0),
        (line(state="MIXED+RESERVED"), 0),
        (line(state="IDLE+NOT_RESPONDING"), 0),
        (line(state="DOWN"), 0),
        (line(state="IDLE+SOMETHING_NEW"), 0),
        (line(state=""), 0),
        (line(partitions="main,gpu"), 4),
        (line(partitions="gpus"), 0),
        (line(more="Reason=State=IDLE GresUsed=gpu:a100:0 RealMemory=9 Gres=gpu:99", used="gpu:a100:4"), 0),
        (line(memory=3, cpus=2), 2),  # a CPU is the least
        ("NodeName=old Partitions=main\nNodeName=plain Partitions=gpu Gres=(null)\n", 0),
        ("", 0),
    ],
)
def test_how_many_are_idle(text: str, found: int) -> None:
    assert len(idle(text)) == found


def test_an_operator_says_what_comes_with_a_gpu() -> None:
    assert len(idle(line(), GpuShare(cpus=16))) == 2
    assert len(idle(line(), GpuShare(memory_mib=3000))) == 1
    assert idle(line(), GpuShare(cpus=33)) == []


def test_numbers_are_those_that_are_not_held() -> None:
    used = line(used="gpu:a100:3")
    assert idle(used, held=("g1.gpu0", "g1.gpu2", "g9.gpu1")) == ["g1.gpu1"]
    assert idle(used, held=("g1.gpu0", "g1.gpu1", "g1.gpu2", "g1.gpu3")) == []


@given(st.integers(1, 9), st.integers(0, 9), st.sets(st.integers(0, 8)), st.integers(0, 40))
def test_no_more_than_are_free_and_none_that_is_held(gpus: int, used: int, held: set[int], used_cpus: int) -> None:
    text = line(gres=f"gpu:{gpus}", used=f"gpu:{used}", used_cpus=used_cpus)
    ours = [unit_name("g1", number) for number in held]
    found = idle(text, held=tuple(ours))
    assert len(found) <= max(0, gpus - used)
    assert not set(found) & set(ours)
    assert all(node_of_unit(unit) == "g1" for unit in found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Gres=gpu:1\n", "NodeName="),
        (line().replace("GresUsed", "Other"), "GresUsed="),
        (line().replace("RealMemory=4000", "RealMemory=much"), "RealMemory= with a number"),
        (line().replace("CPUAlloc=0", ""), "CPUAlloc= with a number"),
        (line(used="gpu:many"), "GresUsed= with numbers of GPUs"),
        (line(used="gpu"), "GresUsed= with numbers of GPUs"),
        (line(gres="gpu:99999"), "at most 10000 GPUs"),
        (line().rstrip("\n"), "ends with a line break"),
    ],
)
def test_an_answer_of_another_form_is_dropped(text: str, said: str) -> None:
    with pytest.raises(UnreadableError, match=said):
        idle(text)


def test_nodes_of_every_recorded_slurm_can_be_read() -> None:
    read, found = 0, set()
    for path in every_sample():
        if path.name == "scontrol_show_nodes_oneline.txt":
            text = path.read_text().replace(" NodeAddr=", " GresUsed=gpu:0 NodeAddr=")
            read += text.count("NodeName=")
            found |= parse_gpus(text, ["main", "batch", "scavenge"], NODE_SHARE).known
    assert read > 30
    assert all(node_of_unit(unit) != unit for unit in found)


def test_what_is_planned_or_reserved_for_a_node_ends_all_its_gpus() -> None:
    states = parse_gpus(line() + line("g2"), ["gpu"], NODE_SHARE)
    coming = Forecast((PlannedStart("7", 500.0, ("g1",)),), (NodeReservation("r", 50.0, 900.0, ("g2",)),))
    found = available_nodes(states, coming, 100.0)
    assert found.idle == set(states.parts["g1"])
    assert found.ends == dict.fromkeys(states.parts["g1"], 500.0)
    assert found.reserved == dict.fromkeys(states.parts["g2"], 100.0)


def test_names() -> None:
    assert node_of_unit("g1.gpu0") == "g1"
    assert node_of_unit("a.b.gpu12") == "a.b"
    for name in ("g1", "g1.gpu", "g1.gpu01", "g1.gpux", ".gpu1", "g1.gpu1.example"):
        assert node_of_unit(name) == name
    known = ["g1.gpu0", "n1", "g1.gpu3", "g2.gpu0"]
    assert units_of(["g1", "n1", "n9", "g2.gpu0"], known) == ["g1.gpu0", "g1.gpu3", "n1", "n9", "g2.gpu0"]
    drained = DrainSet().drained(["g1"], Drain("disk", "ada", 1.0))
    assert "g1.gpu7" in drained
    assert "g2.gpu7" not in drained


def test_gpus_need_placeholders_and_patterns_name_their_nodes() -> None:
    with pytest.raises(ValueError, match=r"expected hold\.queue where units are gpus"):
        SlurmSettings(partitions=("gpu",), units="gpus")
    with pytest.raises(ValueError, match="units"):
        SlurmSettings.model_validate({"partitions": ["gpu"], "units": "cores"})
    section = SlurmSettings(partitions=("gpu",), units="gpus", exclude=("g2",), hold=HoldSettings(queue="scavenge"))
    source = slurm_source(section, SystemClock())
    assert [query.name for query in source.queries.all()] == ["nodes", "queue", "reservations"]
    assert source.selection.wanted("g1.gpu0")
    assert not source.selection.wanted("g2.gpu0")


def test_the_innermost_group_of_a_gpu_is_its_node() -> None:
    assert path_of_unit("g1.gpu0", ("row1", "rack2")) == ("row1", "rack2", "g1")
    assert path_of_unit("g1.gpu0", ()) == ("g1",)
    assert path_of_unit("g1", ("row1",)) == ("row1",)
    deepest = tuple(f"level{number}" for number in range(MAX_LEVELS))
    assert path_of_unit("g1.gpu0", deepest) == (*deepest[1:], "g1")
