"""Where nodes are: what schedulers and operators say of it, and what they can't say."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.observations import NodeFacts, Observation
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.build import build_source
from malletrain.scavenger.sources.placed import PlacedSource, paths_of
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.pbs_json import parse_vnodes
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm import slurm_source
from malletrain.scavenger.sources.schedulers.slurm_text import parse_topology
from malletrain.scavenger.state_file import ScavengerStateFile
from malletrain.v1 import scavenger_pb2
from tests.scavenger.recorded_commands import RecordedCommands
from tests.scavenger.running import running_scavenger
from tests.scavenger.samples import recording


def test_the_switches_of_a_real_slurm() -> None:
    paths = parse_topology(recording("scontrol_topology_tree.txt"))
    assert len(paths) == 24
    assert paths["n01"] == ("s1", "r1")
    assert paths["n24"] == ("s2", "r4")


def test_the_blocks_of_a_real_slurm() -> None:
    paths = parse_topology(recording("scontrol_topology_block.txt"))
    assert len(paths) == 24
    assert paths["n07"] == ("b[1-2]", "b2")
    assert paths["n13"] == ("b[3-4]", "b3")


@pytest.mark.parametrize("text", ["", "No topology information available\n", "\n"])
def test_a_flat_slurm_has_none(text: str) -> None:
    assert parse_topology(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-9",
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-9\n",
        "SwitchName=s0 Level=-1 Nodes=n1\n",
        "SwitchName=s0 Level=99999999999999999999 Nodes=n1\n",
        f"SwitchName={'s' * 129} Level=0 Nodes=n1\n",
        "SwitchName= Level=0 Nodes=n1\n",
        "SwitchName=s0 Level=0 Nodes=n[0-999999999]\n",
        "AggregatedBlock=b[1-2] Nodes=n1\n",
        "ReservationName=x Nodes=n1\n",
        "slurm_load_topo error: Unable to contact slurm controller\n",
    ],
)
def test_an_answer_of_another_form_is_no_topology(text: str) -> None:
    with pytest.raises(UnreadableError):
        parse_topology(text)


def test_odd_answers_that_have_a_meaning() -> None:
    assert parse_topology("SwitchName=s0 Level=0 LinkSpeed=1 Nodes=(null)\n") == {}
    twice = "SwitchName=a Level=0 Nodes=n1\nSwitchName=b Level=0 Nodes=n[1-2]\n"
    assert parse_topology(twice) == {"n1": ("a",), "n2": ("b",)}
    deep = "".join(f"SwitchName=s{level} Level={level} Nodes=n1\n" for level in range(12))
    assert parse_topology(deep) == {"n1": tuple(f"s{level}" for level in range(7, -1, -1))}


def vnodes(**resources: Any) -> dict[str, NodeFacts]:
    nodes = {name: {"state": "free", "resources_available": {"host": name, **own}} for name, own in resources.items()}
    text = json.dumps({"pbs_version": "1", "nodes": nodes})
    return dict(parse_vnodes(text, topology_resources=("row", "switch")).facts)


def test_the_placement_sets_of_pbs() -> None:
    facts = vnodes(
        n1={"row": "r1", "switch": "s1,s9"},
        n2={"row": 2, "switch": "s2"},
        n3={"row": "r1"},
        n4={"switch": "s1"},
        n5={"row": ["odd"], "switch": "s1"},
        n6={"row": "r1", "switch": " , "},
        n7={"row": "r" * 200, "switch": "s1"},
    )
    assert {name: entry.topology for name, entry in facts.items()} == {
        "n1": ("r1", "s1"),
        "n2": ("2", "s2"),
        "n3": ("r1",),
        "n4": (),
        "n5": (),
        "n6": ("r1",),
        "n7": (),
    }


def scontrol(folder: Path, body: str) -> str:
    """A scontrol that knows no reservations, and answers a question for the topology as told."""
    path = folder / "scontrol"
    script = f'#!/bin/sh\ncase "$*" in *topology*) {body};; *) echo "No reservations in the system";; esac\n'
    path.write_text(script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


async def first_with(folder: Path, body: str, topology: bool = True) -> tuple[Observation, dict[str, int]]:
    """What a source sees first, and how often each query has failed."""
    commands = RecordedCommands(folder)
    section = SlurmSettings(
        partitions=("main",),
        sinfo=commands.add("sinfo", "idle|n[01-02],x1\n"),
        squeue=commands.add("squeue"),
        scontrol=scontrol(folder, body),
        topology=topology,
    )
    source = slurm_source(section, SystemClock())
    async with asyncio.timeout(60):
        async for observation in source.observations():
            return observation, {query.query: query.failed for query in source.status().queries}
    raise AssertionError("the source has ended")


async def test_nodes_of_slurm_have_their_switches(tmp_path: Path) -> None:
    seen, failed = await first_with(tmp_path, f"printf '{recording('scontrol_topology_tree.txt')}'")
    assert {name: entry.topology for name, entry in seen.facts.items()} == {
        "n01": ("s1", "r1"),
        "n02": ("s1", "r1"),
        "x1": (),
    }
    assert failed["topology"] == 0


async def test_a_failed_question_leaves_the_harvest_as_it_is(tmp_path: Path) -> None:
    seen, failed = await first_with(tmp_path, "echo broken; exit 1")
    assert set(seen.idle) == {"n01", "n02", "x1"}
    assert {entry.topology for entry in seen.facts.values()} == {()}
    assert failed["topology"] == 1


async def test_nodes_that_the_scheduler_does_not_know_are_told_once(tmp_path: Path) -> None:
    commands = RecordedCommands(tmp_path)
    section = SlurmSettings(
        partitions=("main",),
        sinfo=commands.add("sinfo", "idle|n[01-02]\n"),
        squeue=commands.add("squeue"),
        scontrol=scontrol(tmp_path, f"printf '{recording('scontrol_topology_tree.txt')}'"),
        topology=True,
        interval_seconds=0.05,
    )
    source = PlacedSource(slurm_source(section, SystemClock()), {"n01": ("here",), "n99": ("there",)})
    seen: list[Observation] = []
    with capture_logs() as logs:
        async with asyncio.timeout(60):
            async for observation in source.observations():
                seen.append(observation)
                if len(seen) == 3:
                    break
    told = [entry for entry in logs if "topology names nodes" in entry["event"]]
    assert [(entry["nodes"], entry["first"]) for entry in told] == [(1, ["n99"])]
    assert {name: entry.topology for name, entry in seen[-1].facts.items()} == {"n01": ("here",), "n02": ("s1", "r1")}


async def test_slurm_is_not_asked_unless_told(tmp_path: Path) -> None:
    _, failed = await first_with(tmp_path, "exit 1", topology=False)
    assert "topology" not in failed


STATIC: dict[str, Any] = {"source": "static", "nodes": ["n1", "n2", "n3"], "debounce_seconds": 0}


async def test_static_nodes_are_told_with_their_groups(tmp_path: Path) -> None:
    section = {**STATIC, "topology": {"n[1-2]": ["row1", "rack1"]}, "node_traits": {"n1": {"features": ["ib"]}}}
    async with running_scavenger(tmp_path, section) as scavenger:
        found = (await scavenger.stub.ListNodes(scavenger_pb2.ListNodesRequest())).nodes
    assert {node.name: tuple(node.topology) for node in found} == {
        "n1": ("row1", "rack1"),
        "n2": ("row1", "rack1"),
        "n3": (),
    }
    assert list(found[0].features) == ["ib"]


@pytest.mark.parametrize(
    ("topology", "field"),
    [
        ({"n9": ["rack1"]}, "scavenger.topology.n9"),
        ({"n[1": ["rack1"]}, "scavenger.topology.n[1"),
        ({"n*": ["rack1"]}, "scavenger.topology.n*"),
        ({"n[1-2]": ["rack1"], "n2": ["rack2"]}, "scavenger.topology.n2"),
    ],
)
def test_a_topology_that_does_not_fit_the_nodes_is_refused(
    tmp_path: Path, topology: dict[str, list[str]], field: str
) -> None:
    section = ScavengerSettings(**{**STATIC, "topology": topology})
    with pytest.raises(InvalidInputError) as error:
        build_source(section, Settings(state_dir=tmp_path), ScavengerStateFile(tmp_path), SystemClock())
    assert error.value.field == field


@pytest.mark.parametrize("path", [["a"] * 9, [""], ["a\nb"], [" a"], ["x" * 129], [7], "rack1"])
def test_groups_that_can_not_be_are_refused(path: Any) -> None:
    with pytest.raises(ValidationError, match="topology"):
        ScavengerSettings(**{**STATIC, "topology": {"n1": path}})


def test_more_nodes_than_any_machine_has_are_refused() -> None:
    with pytest.raises(InvalidInputError) as error:
        paths_of({"a[1-90000]": ("x",), "b[1-90000]": ("y",)})
    assert error.value.field == "scavenger.topology"
