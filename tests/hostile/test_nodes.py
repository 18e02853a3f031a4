"""A node is nobody but itself: real agents that say what they are not, and what is seen of their keys."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from malletrain.common import environment as env
from malletrain.common.launch_file import AgentAddress
from malletrain.runtime.access.pki import certificate_path
from malletrain.scavenger.acquisition.agent_registry import AgentRegistry
from malletrain.scavenger.acquisition.batch_client import AgentCommand, BatchClient
from malletrain.scavenger.acquisition.held_source import SshAgentStarter
from malletrain.scavenger.acquisition.node_certificates import NodeCertificates
from malletrain.scavenger.acquisition.pbs_batch_client import PbsBatchClient
from malletrain.scavenger.acquisition.slurm_batch_client import SlurmBatchClient
from malletrain.supervisor.workers.agent_links import AgentLink, start_message
from malletrain.supervisor.workers.slot import Slot
from malletrain.tls.names import node_name
from malletrain.v1 import agent_pb2 as pb
from tests.agent.registries import registry_in_thread
from tests.agent.running import RunningAgent
from tests.hostile.submissions import NotingPrograms, Submission, started
from tests.supervisor.running import supervised
from tests.support.certificates import LIFESPAN_SECONDS as CERTIFICATE_SECONDS
from tests.support.certificates import certificate, node_certificate
from tests.support.clocks import ManualClock
from tests.support.waiting import wait_until, wait_until_async
from tests.tls.serving import serial, shown_certificate

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

LIFESPAN = 400.0
"""In seconds. A certificate that is made when half of it is over is valid now: they are, from 300 s before."""


@dataclass
class Installation:
    """A registry, and agents of it."""

    folder: Path
    registry: AgentRegistry
    address: str
    certificates: NodeCertificates
    clock: ManualClock
    agents: list[RunningAgent]
    ended: set[str]
    """Nodes on which no placeholder is."""

    def agent(self, node: str, shown: Path, *more: str) -> RunningAgent:
        """Start an agent that says it is on a node, and shows a certificate."""
        own_log = self.folder / f"agent{len(self.agents)}"
        own_log.mkdir()
        agent = RunningAgent(node, own_log, self.address, 0.5, *more, certificate=shown)
        self.agents.append(agent)
        return agent

    def joined(self, node: str, shown: Path) -> RunningAgent:
        """Start one that is let in."""
        agent = self.agent(node, shown)
        wait_until(lambda: self.serves(node, agent), 30, "the agent")
        return agent

    def serves(self, node: str, agent: RunningAgent) -> bool:
        """Whether this agent is the one of a node."""
        present = self.registry.present.get(node)
        return present is not None and present.address == agent.address

    def refuses(self, agent: RunningAgent, why: str) -> bool:
        """Whether an agent has been told why it is refused, and is nowhere."""
        wait_until(lambda: why in agent.said, 30, f"{why!r}")
        return all(agent.address != entry.address for entry in self.registry.present.values())


@pytest.fixture(autouse=True)
def _looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("malletrain.scavenger.acquisition.node_certificates.LOOK_SECONDS", 0.1)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    clock = ManualClock(time.time())
    certificates = NodeCertificates(tmp_path, clock, LIFESPAN, 15.0)
    ended: set[str] = set()
    with registry_in_thread(tmp_path, certificates, lambda node: node not in ended) as (registry, address):
        found = Installation(tmp_path, registry, address, certificates, clock, [], ended)
        try:
            yield found
        finally:
            for agent in found.agents:
                agent.close()


def test_an_agent_is_let_in_as_its_own_node_only(installation: Installation) -> None:
    shown = node_certificate(installation.folder, "n1", 1)
    with capture_logs() as logs:
        liar = installation.agent("n2", shown)
        assert installation.refuses(liar, "the certificate is that of another node than n2")
        (line, *_) = [entry for entry in logs if entry["event"] == "audit" and not entry["allowed"]]
    assert line["method"].endswith("/Register")
    assert "another node than n2" in line["reason"]
    honest = installation.joined("n2", node_certificate(installation.folder, "n2", 1))
    assert installation.registry.present["n2"].name == node_name("n2")
    assert installation.refuses(liar, "another node")
    assert installation.serves("n2", honest)


def test_the_certificate_of_an_earlier_placeholder_does_not_take_the_place_of_the_present_one(
    installation: Installation,
) -> None:
    folder = installation.folder
    earlier = node_certificate(folder, "n1", 1)
    present = installation.joined("n1", node_certificate(folder, "n1", 2))
    late = installation.agent("n1", earlier)
    by_hand = installation.agent("n1", node_certificate(folder, "n1"))
    wait_until(lambda: "that of an earlier placeholder on n1" in late.said, 30, "the refusal")
    wait_until(lambda: "the agent of a placeholder is on n1" in by_hand.said, 30, "the refusal")
    assert installation.serves("n1", present)
    by_hand.close()
    present.process.send_signal(signal.SIGTERM)
    assert present.process.wait(30) == 0
    wait_until(lambda: "n1" not in installation.registry.present, 10, "its end")
    again = installation.agent("n1", earlier)
    assert installation.refuses(again, "that of an earlier placeholder on n1")
    # The agent of the next one takes the place, also while the one before is still there.
    second, third = (node_certificate(folder, "n1", number) for number in (3, 4))
    installation.joined("n1", second)
    installation.joined("n1", third)


def test_the_certificate_of_a_placeholder_is_worth_nothing_once_it_has_ended(installation: Installation) -> None:
    shown = node_certificate(installation.folder, "n1", 1)
    present = installation.joined("n1", shown)
    present.process.kill()
    wait_until(lambda: "n1" not in installation.registry.present, 10, "its end")
    installation.ended.add("n1")
    thief = installation.agent("n1", shown)
    assert installation.refuses(thief, "the certificate is that of a placeholder, and none is on n1")


def test_an_agent_does_not_speak_for_the_placeholder_of_another_node(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PBS_JOBID", "77.head")
    friend = installation.joined("n1", node_certificate(installation.folder, "n1", 1))
    liar = installation.agent("n2", node_certificate(installation.folder, "n2", 1))
    assert installation.refuses(liar, "placeholder '77.head' is that of another node's agent")
    assert installation.serves("n1", friend)


def test_the_shared_certificate_of_0_1_is_accepted_until_it_expires_and_never_again(installation: Installation) -> None:
    folder, registry = installation.folder, installation.registry
    copy = folder / "copy.pem"
    shutil.copy(certificate(folder, "agent"), copy)
    installation.joined("n1", node_certificate(folder, "n1", 1))
    old = installation.joined("n2", certificate(folder, "agent"))
    assert registry.present["n2"].name == ""
    assert installation.refuses(installation.agent("n1", copy), "the agents of n1 have one of their own")
    installation.clock.advance(CERTIFICATE_SECONDS + 1)
    assert old.process.wait(30) == 0, "it is told to leave: nobody reaches it any more"
    assert not certificate_path(folder, "agent").exists()
    assert installation.refuses(installation.agent("n3", copy), "the certificate names no node")


def test_a_certificate_is_renewed_for_the_same_node_while_connections_go_on(installation: Installation) -> None:
    folder = installation.folder
    first = folder / "first.pem"
    first.write_text(installation.certificates.issue("n1"))
    first.chmod(0o600)
    agent = installation.joined("n1", first)
    supervisor = certificate(folder, "supervisor")
    link = AgentLink("n1", AgentAddress(agent.address, node_name("n1")), supervisor)
    worker = link.start(Slot("n1", 0), _worker(folder, "exec sleep 600"))
    wait_until(worker.is_warm, 30, "the worker")
    before = installation.registry.present["n1"]
    assert shown_certificate(agent.address, supervisor).serial_number == serial(first)
    installation.clock.advance(LIFESPAN / 2 + 60)
    wait_until(lambda: shown_certificate(agent.address, supervisor).serial_number != serial(first), 30, "another one")
    assert not link.is_lost
    assert worker.poll() is None
    assert installation.registry.present["n1"] == before
    assert AgentLink("n1", AgentAddress(agent.address, node_name("n1")), supervisor).sweep("nobody's")
    # It registers anew with the new one, of the same placeholder. Its file counts again once it is replaced.
    node_certificate(folder, "n1", 9).replace(first)
    assert shown_certificate(agent.address, supervisor).serial_number == serial(first)
    link.close()


def test_a_supervisor_refuses_an_agent_at_another_nodes_address(installation: Installation) -> None:
    agent = installation.joined("n1", node_certificate(installation.folder, "n1", 1))
    supervisor = certificate(installation.folder, "supervisor")
    at_taken_address = AgentLink("n2", AgentAddress(agent.address, node_name("n2")), supervisor)
    wait_until(lambda: at_taken_address.is_lost, 30, "the refusal")
    assert not at_taken_address.sweep("nobody's")
    for name in (node_name("n1"), ""):
        link = AgentLink("n1", AgentAddress(agent.address, name), supervisor)
        assert link.sweep("nobody's"), "its own name, and the role for supervisors that are told no name"
        link.close()


def test_the_supervisor_of_a_job_starts_nothing_at_an_address_that_another_node_has_taken(
    installation: Installation,
) -> None:
    folder = installation.folder
    agent = installation.joined("n1", node_certificate(folder, "n1", 1))
    with supervised(
        folder / "job",
        "n1",
        command=["/bin/sleep", "600"],
        backend="command",
        agents={"n1": agent.address, "n2": agent.address},
        agent_names={"n1": node_name("n1"), "n2": node_name("n2")},
        certificate_file=certificate(folder, "supervisor"),
    ) as job:
        wait_until(lambda: set(job.pids()) == {"n1"}, 30, "the worker on n1")
        job.command("n2")
        wait_until(lambda: "agent of n2: UNAVAILABLE" in job.said, 30, "the refusal")
        assert not job.pids().get("n2"), "no process there"
        assert not [found for found in _agents_of(installation) if _workers_of(found)]


# -- what is seen of keys ----------------------------------------------------------------------------------------------


def _worker(folder: Path, script: str) -> pb.StartWorker:
    own = {env.JOB_ID: f"j-{folder.parent.name}", env.JOB_DIR: str(folder)}
    command = ["/bin/sh", "-c", script]
    return start_message(Slot("n1", 0), command, str(folder), own, folder / "worker.log", warm=False)


def _client(kind: str, programs: NotingPrograms, installation: Installation) -> BatchClient:
    issue = installation.certificates.issue
    agent = AgentCommand(
        sys.executable, installation.address, issue, "127.0.0.1", 0.5, "0123abcd", standby_memory_mib=4096
    )
    match kind:
        case "slurm":
            return SlurmBatchClient(programs.run, agent, "scavenge")
        case "pbs":
            return PbsBatchClient(programs.run, agent, "scavenge")
        case _:
            return SshAgentStarter(programs.run, agent, installation.registry, ("ssh", "-q"), f"{programs.folder}/log")


def _begun(kind: str, submission: Submission, programs: NotingPrograms) -> subprocess.Popen[bytes]:
    """What the scheduler, or sshd, starts on the node. Slurm has the script in a file, and so has PBS."""
    own = {"PATH": f"{programs.folder}:{os.environ['PATH']}", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    log = programs.folder / "log"
    if kind == "ssh":
        return started(["/bin/sh", "-c", submission.argv[-1]], submission.text.encode(), own, log)
    jobs = programs.folder / "mom_priv" / "jobs"
    jobs.mkdir(parents=True)
    script = jobs / "7.head.SC"
    script.write_text(submission.text)
    if kind == "slurm":
        return started(["/bin/sh", str(script)], b"", own | {"SLURM_JOB_ID": "7"}, log)
    attributes = dict(word.split("=", 1) for word in submission.argv if word.startswith(("executable=", "argument_")))
    arguments = re.findall("<jsdl-hpcpa:Argument>([^<]*)<", attributes["argument_list"])
    told = own | {"PBS_JOBID": "7.head", "PBS_NODEFILE": f"{programs.folder}/aux/7.head"}
    return started([attributes["executable"], *arguments], b"", told, log)


def _agents_of(installation: Installation) -> list[psutil.Process]:
    """The agents that report to this registry."""
    words = {"malletrain.agent", installation.address}
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if words <= set(process.info["cmdline"] or ())]


def _workers_of(agent: psutil.Process) -> list[psutil.Process]:
    def words(child: psutil.Process) -> list[str]:
        try:
            return child.cmdline()
        except psutil.NoSuchProcess:  # a zombie, too
            return []

    return [child for child in agent.children() if "sleep" in words(child)]


def _texts_of(process: psutil.Process) -> str:
    """What everybody, or the same account, reads of a process in /proc."""
    folder, found = Path(f"/proc/{process.pid}"), b""
    for name in ("cmdline", "environ", "stat", "status"):
        with contextlib.suppress(OSError):
            found += (folder / name).read_bytes()
    return found.decode(errors="replace")


@pytest.mark.parametrize("kind", ["slurm", "pbs", "ssh"])
async def test_no_command_line_no_environment_and_no_worker_has_the_key(kind: str, installation: Installation) -> None:
    programs = NotingPrograms(installation.folder / "programs")
    await _client(kind, programs, installation).submit("n1", 600)
    (submission,) = programs.submissions
    (line,) = re.findall(r"[A-Za-z0-9+/=]{400,}", submission.text)
    key = base64.b64decode(line).decode().splitlines()[1]
    shown = (*submission.argv, *submission.environment.values())
    assert not [word for word in shown if line in word or key in word]

    process = _begun(kind, submission, programs)
    try:
        await wait_until_async(lambda: "n1" in installation.registry.present, 30, "the agent")
        present = installation.registry.present["n1"]
        link = AgentLink(
            "n1", AgentAddress(present.address, present.name), certificate(installation.folder, "supervisor")
        )
        folder = installation.folder / "job"
        folder.mkdir()
        link.start(Slot("n1", 0), _worker(folder, "cat /proc/self/environ /proc/self/cmdline; exec sleep 600")).go({})
        log = folder / "worker.log"
        await wait_until_async(lambda: log.exists() and "cat\0" in log.read_text(), 30, "the worker")
        (agent,) = _agents_of(installation)
        await wait_until_async(lambda: len(agent.children()) >= 2, 30, "the worker and a standby process")
        everyone = [agent, *agent.children(recursive=True), *agent.parents()]
        texts = [*map(_texts_of, everyone), log.read_text()]
        assert env.JOB_ID in texts[-1]
        assert not [text for text in texts if line in text or key in text]
        if kind != "pbs":
            assert Path(f"/proc/{agent.pid}/fd/0").readlink() == Path(os.devnull)
        if kind == "pbs":
            assert not (programs.folder / "mom_priv/jobs/7.head.SC").read_text(), "the script is emptied"
        link.close()
        agent.send_signal(signal.SIGTERM)
        agent.wait(30)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for left in _agents_of(installation):
            left.kill()
