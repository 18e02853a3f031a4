"""Agents and supervisors of two versions work together, under services of this one."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from malletrain.cli.demo.setup import free_ports
from malletrain.runtime.access.keys import installation_id
from tests.scavenger.recorded_commands import RecordedCommands
from tests.support.waiting import wait_until
from tests.system.deployment import write_settings
from tests.upgrade.training import PATIENCE, end_services, kill_services, start_services, submit
from tests.upgrade.versions import Prefix

pytestmark = [pytest.mark.upgrade, pytest.mark.timeout(400)]

_HERE = '#!/bin/sh\nexec sh -c "$2"\n'
"""In place of ssh: all nodes are this machine."""


def settings(folder: Path, commands: RecordedCommands, python: str) -> str:
    """Nodes that a Slurm of recorded answers calls idle are held by agents, which this interpreter runs."""
    enter = folder / "enter"
    enter.write_text(_HERE)
    enter.chmod(0o755)
    programs = {name: commands.add(name, "") for name in ("squeue", "scontrol")}
    programs["sinfo"] = commands.add("sinfo", idle("n1", "n2"))
    paths = "".join(f'{name} = "{path}"\n' for name, path in programs.items())
    agents = free_ports()[0]
    return f"""
[job_manager]
stop_jobs_on_exit = false
[scavenger]
source = "slurm"
debounce_seconds = 0
[scavenger.slurm]
partitions = ["main"]
interval_seconds = 0.5
{paths}
[scavenger.slurm.hold]
ssh = ["{enter}"]
agents_address = "127.0.0.1:{agents}"
listen = "127.0.0.1"
python = "{python}"
log = "{folder}/agents.log"
calm_seconds = 0
"""


def idle(*nodes: str) -> str:
    return "".join(f"idle|{node}\n" for node in nodes)


def agents(folder: Path) -> dict[str, psutil.Process]:
    """The agents that run, by node."""
    found = {}
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "malletrain.agent" in words and installation_id(folder / "state") in words:
            found[words[words.index("--node") + 1]] = process
    return found


def test_agents_and_supervisors_of_two_versions(folder: Path, earlier_prefix: Prefix, present_prefix: Prefix) -> None:
    commands = RecordedCommands(folder / "slurm")
    commands.folder.mkdir()
    state = folder / "state"
    write_settings(state, settings(folder, commands, earlier_prefix.python))
    training = submit(start_services(state, earlier_prefix), "torchrun")
    training.wait_trains_on(["n1", "n2"])
    of_earlier = agents(folder)
    assert set(of_earlier) == {"n1", "n2"}
    before = training.processes()

    kill_services(training.system)
    config = state / "malletrain.toml"
    config.write_text(config.read_text().replace(earlier_prefix.python, present_prefix.python))
    training.system = start_services(state, present_prefix)
    training.wait_trains_on(["n1", "n2"])
    assert training.processes() == before
    # An agent of this version, for a supervisor of the last release.
    commands.says("sinfo", idle("n1", "n2", "n3"))
    training.wait_trains_on(["n1", "n2", "n3"])
    assert training.processes().supervisor == before.supervisor
    all_of_them = agents(folder)
    assert all_of_them["n3"].cmdline()[0] == present_prefix.python
    assert {node: all_of_them[node].pid for node in of_earlier} == {node: of_earlier[node].pid for node in of_earlier}
    training.end(by_steps=True)

    # A supervisor of this version, for agents of both.
    later = submit(training.system, "torchrun")
    later.wait_trains_on(["n1", "n2", "n3"])
    assert agents(folder) == all_of_them
    commands.says("sinfo", idle("n2", "n3") + "allocated|n1\n")
    later.wait_trains_on(["n2", "n3"])
    wait_until(lambda: not all_of_them["n1"].is_running(), PATIENCE, "the end of the agent of a node that is taken")
    later.end(repeats=True, by_steps=True)
    end_services(later.system)
