"""Head node and nodes with own addresses: a training across them, what can be read on the way, and strangers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from malletrain.cli.demo.setup import free_ports
from malletrain.runtime.access.keys import owner_file
from tests.netns.namespaces import HEAD_ADDRESS, INTERFACE, Namespaces, missing, namespaces, run
from tests.scavenger.recorded_commands import RecordedCommands
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.netns, pytest.mark.timeout(400)]

PATIENCE = 120.0
TRAINER = Path(__file__).parents[2] / "benchmarks" / "impact" / "trainer.py"
LATER = 10**15
"""Number of a placeholder that comes after all others."""
SECRET = "a-value-that-nobody-else-may-read"
REGISTER = """
import sys
from pathlib import Path
import grpc
from malletrain.v1 import agent_pb2, agent_pb2_grpc
from tests.support.certificates import secure_channel
with secure_channel(sys.argv[1], Path(sys.argv[2]), "scavenger") as channel:
    introduction = agent_pb2.AgentIntroduction(node="n2", port=7, placeholder="a stranger")
    calls = agent_pb2_grpc.AgentRegistryServiceStub(channel)
    try:
        for _ in calls.Register(iter([agent_pb2.RegisterRequest(introduction=introduction)]), timeout=5):
            print("registered")
    except grpc.RpcError as error:
        print(error.code().name)
"""


class Installation:
    """A system that trains on the nodes that a Slurm of recorded answers calls idle."""

    def __init__(self, folder: Path, spaces: Namespaces) -> None:
        self.folder = folder
        self.commands = RecordedCommands(folder / "slurm")
        self.commands.folder.mkdir(parents=True)
        self.agents_address, self.monitor_for_nodes = (f"{HEAD_ADDRESS}:{port}" for port in free_ports()[:2])
        self._enter = folder / "enter"
        cases = "".join(f"{node}) space={name} ;;\n" for node, name in spaces.nodes.items())
        self._enter.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}esac\nexec ip netns exec "$space" sh -c "$2"\n')
        self._enter.chmod(0o755)

    def idle(self, *nodes: str, taken: str = "") -> None:
        """From now on Slurm says that these nodes are idle, and one is taken."""
        lines = [f"idle|{node}\n" for node in nodes] + ([f"allocated|{taken}\n"] if taken else [])
        self.commands.says("sinfo", "".join(lines))

    @property
    def settings(self) -> str:
        programs = {name: self.commands.add(name, text) for name, text in (("squeue", ""), ("scontrol", ""))}
        programs["sinfo"] = self.commands.add("sinfo", "idle|n1\nidle|n2\nallocated|n3\n")
        paths = "".join(f'{name} = "{path}"\n' for name, path in programs.items())
        return f"""
monitor_for_nodes = "{self.monitor_for_nodes}"
[job_manager]
head_address = "{HEAD_ADDRESS}"
interfaces = ["{INTERFACE}"]
standby_memory_mib = 0
[scavenger]
source = "slurm"
debounce_seconds = 0
[scavenger.slurm]
partitions = ["main"]
interval_seconds = 0.5
{paths}
[scavenger.slurm.hold]
ssh = ["{self._enter}"]
agents_address = "{self.agents_address}"
listen = "0.0.0.0"
python = "{sys.executable}"
log = "{self.folder}/agents.log"
calm_seconds = 0
standby_memory_mib = 0
"""


def job(system: Deployment) -> dict[str, Any]:
    (found,) = system.json("jobs")
    return dict(found)


def confirmed(system: Deployment) -> set[str]:
    return set(job(system)["confirmedNodes"])


def samples(system: Deployment) -> int:
    return int(job(system)["samples"])


def test_a_training_across_nodes_that_gives_nothing_away_and_lets_no_stranger_in(tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    if reason := missing():
        pytest.skip(reason)
    capture = tmp_path / "capture"
    with namespaces("n1", "n2", "n3") as spaces:
        installation = Installation(tmp_path, spaces)
        state = tmp_path / "state"
        with (
            spaces.captured(capture),
            deployed(state, installation.settings, host=HEAD_ADDRESS, prefix=spaces.on_head) as system,
        ):
            submit = ["--min", "1", "--max", "3", "--curve", "1:100,2:190,3:270", "--env", f"API_KEY={SECRET}"]
            costs = ["--scale-up", "3", "--scale-down", "1"]
            done = system.command("submit", *submit, *costs, "--", sys.executable, str(TRAINER), timeout=60)
            assert done.returncode == 0, done.stderr
            wait_until(lambda: confirmed(system) == {"n1", "n2"} and samples(system) > 0, PATIENCE, "two nodes")
            installation.idle("n1", "n2", "n3")
            wait_until(lambda: confirmed(system) == {"n1", "n2", "n3"}, PATIENCE, "a third node")
            assert all(spaces.processes(node) for node in spaces.nodes)

            installation.idle("n1", "n3", taken="n2")
            wait_until(lambda: not spaces.processes("n2"), PATIENCE, "a clean node")
            wait_until(lambda: confirmed(system) == {"n1", "n3"}, PATIENCE, "a training without it")
            before = samples(system)
            wait_until(lambda: samples(system) > before, PATIENCE, "more samples")

            assert stranger(spaces, installation, tmp_path / "theirs") == "UNAVAILABLE"
            assert stranger(spaces, installation, state, "n1") == "PERMISSION_DENIED", "it is another node's"
            found = set(stranger(spaces, installation, state).split())
            assert found == {"registered"}, "a certificate of ours for this node is what it takes"
            assert not (state / "keys/certificates/agent.pem").exists()
            secrets = [SECRET, owner_file(state).read_text().strip()]
            secrets += [path.read_text().strip() for path in (state / "jobs").glob("*/report.token")]
        assert len(secrets) >= 3
    seen = capture.read_bytes()
    assert b"HTTP/1." in seen, "Horovod's rendezvous is in clear: the capture works"
    assert b"malletrain.internal" in seen, "so are the names in handshakes"
    for text in (*secrets, "authorization", "MALLETRAIN_JOB_ID", job_id(state), "MonitorService"):
        assert text.encode() not in seen, text


def job_id(state: Path) -> str:
    (folder,) = (state / "jobs").iterdir()
    return folder.name


def stranger(spaces: Namespaces, installation: Installation, state: Path, node: str = "n2") -> str:
    """What an agent hears that registers from n2, with a node's certificate of the installation in a state folder."""
    from tests.support.certificates import node_certificate

    path = node_certificate(state, node, LATER)
    words = [sys.executable, "-c", REGISTER, installation.agents_address, str(path)]
    return run(*spaces.on("n2"), "env", "PYTHONPATH=" + json.dumps(sys.path[0])[1:-1], *words).strip()
