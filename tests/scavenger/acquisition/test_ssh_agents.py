"""Agents started over a real ssh, on nodes that are only watched."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.runtime.access.keys import installation_id
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.scavenger.acquisition.batch_client import AgentCommand
from malletrain.scavenger.acquisition.held_source import HeldSource, SshAgentStarter, build_held_source
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.sources.base import SourceError, SourceStatus
from malletrain.scavenger.sources.schedulers.commands import run_command
from malletrain.scavenger.sources.schedulers.settings import HoldSettings
from tests.scavenger.acquisition.secure_shell import SSHD, ssh_command
from tests.scavenger.running import NOBODY
from tests.support.ports import free_port
from tests.support.waiting import wait_until_async

needs_sshd = pytest.mark.skipif(SSHD is None, reason="needs sshd: apt install openssh-server")


class Watched:
    """What a scheduler calls idle."""

    def __init__(self, *idle: str) -> None:
        self.idle = set(idle)
        self.reserved: dict[str, float] = {}
        self.offline: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def tell(self, *idle: str) -> None:
        self.idle = set(idle)
        self._changed.set()

    def order(self) -> Sequence[str]:
        return ("n1", "n2", "n3", "n4")

    def past_lengths(self) -> Sequence[float]:
        return ()

    def status(self) -> SourceStatus:
        return SourceStatus()

    def exclude(self, until: Mapping[str, float], drained: Container[str] = frozenset()) -> None:
        raise AssertionError("nothing is held there")

    def move_times(self, seconds: float) -> None:
        raise AssertionError("the clock is not set here")

    async def close(self) -> None:
        return

    async def observations(self) -> AsyncIterator[Observation]:
        while True:
            idle = dict.fromkeys(sorted(self.idle), 0.0)
            yield Observation(SystemClock().time(), idle, reserved=self.reserved, offline=self.offline)
            await self._changed.wait()
            self._changed.clear()


class FourWanted:
    """Work for four nodes."""

    def nodes(self) -> int:
        return 4

    def by_needs(self) -> dict[NodeNeeds, int]:
        return {NO_NEEDS: 4}

    async def follow(self) -> None:
        await asyncio.Event().wait()


def source_of(
    folder: Path, watched: Watched, ssh: tuple[str, ...], port: int, *, give_back: bool = False
) -> HeldSource:
    address = f"127.0.0.1:{port}"
    section = HoldSettings(
        ssh=ssh,
        agents_address=address,
        python=sys.executable,
        log=str(folder / "agents.log"),
        grace_seconds=0.5,
        give_back_at_exit=give_back,
    )
    settings = Settings(state_dir=folder, addresses=Addresses(job_manager=NOBODY))
    return build_held_source("slurm", section, lambda _: watched, settings, 0.0, SystemClock(), demand=FourWanted())


def agents_of(folder: Path) -> list[int]:
    """Processes of this installation's agents."""
    shown = installation_id(folder)
    found = psutil.process_iter(["cmdline"])
    return [process.pid for process in found if shown in (process.info["cmdline"] or ()) and is_agent(process)]


def is_agent(process: psutil.Process) -> bool:
    return process.info["cmdline"][0].endswith(Path(sys.executable).name)


@needs_sshd
async def test_idle_nodes_get_an_agent_that_leaves_when_they_are_wanted_and_outlives_the_scavenger(
    tmp_path: Path,
) -> None:
    watched, port, seen = Watched("n1", "n2"), free_port(), []

    async def follow(source: HeldSource) -> None:
        async for observation in source.observations():
            seen.append(observation)

    with ssh_command(tmp_path / "ssh") as ssh:
        try:
            source = source_of(tmp_path, watched, ssh, port)
            first = asyncio.create_task(follow(source))
            await wait_until_async(lambda: seen and set(seen[-1].agents) == {"n1", "n2"}, 60, "two agents")
            watched.tell("n2")
            await wait_until_async(lambda: set(seen[-1].idle) == {"n2"}, 10, "n1 to be left")
            await wait_until_async(lambda: len(agents_of(tmp_path)) == 1, 10, "the end of n1's agent")
            stays = agents_of(tmp_path)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            await source.close()
            seen.clear()
            source = source_of(tmp_path, watched, ssh, port)
            second = asyncio.create_task(follow(source))
            await wait_until_async(lambda: seen and set(seen[-1].agents) == {"n2"}, 30, "the agent's return")
            assert agents_of(tmp_path) == stays
            log = (tmp_path / "agents.log").read_text()
            assert log.count("node n2 is served") == 1, "no second agent is sent for"
            watched.tell()
            await wait_until_async(lambda: not agents_of(tmp_path), 10, "the end of the last agent")
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            await source.close()
        finally:
            for pid in agents_of(tmp_path):
                psutil.Process(pid).kill()


@needs_sshd
async def test_nodes_are_left_that_operators_or_reservations_need_and_all_at_a_graceful_end(tmp_path: Path) -> None:
    watched, seen, now = Watched("n1", "n2", "n3", "n4"), [], SystemClock().time
    with ssh_command(tmp_path / "ssh") as ssh:
        source = source_of(tmp_path, watched, ssh, free_port(), give_back=True)

        async def follow() -> None:
            async for observation in source.observations():
                seen.append(set(observation.idle))

        following = asyncio.create_task(follow())
        try:
            await wait_until_async(lambda: seen and len(seen[-1]) == 4, 60, "four agents")
            watched.offline = frozenset({"n1"})
            watched.tell(*watched.idle)
            await wait_until_async(lambda: seen[-1] == {"n2", "n3", "n4"}, 10, "a node that is offline to be left")
            watched.reserved = {"n2": now() + 10, "n3": now() + 1000}
            watched.tell(*watched.idle)
            await wait_until_async(lambda: seen[-1] == {"n3", "n4"}, 10, "a node to be left before its reservation")
            source.exclude({"n3": now() + 1000, "n4": now() - 1})
            await wait_until_async(lambda: seen[-1] == {"n4"}, 10, "a node to be given back")
            await wait_until_async(lambda: len(agents_of(tmp_path)) == 1, 10, "the end of their agents")
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await source.close()
            await wait_until_async(lambda: not agents_of(tmp_path), 10, "the end of the last agent")
        finally:
            following.cancel()
            for pid in agents_of(tmp_path):
                psutil.Process(pid).kill()


HERE = ("sh", "-c", 'exec sh -c "$2"', "ssh")
"""In place of ssh: a command of this machine, whose session is killed as soon as it has ended."""


@pytest.mark.parametrize("number", range(20))
async def test_an_agent_outlives_the_session_of_the_command_that_starts_it(tmp_path: Path, number: int) -> None:
    told, program = tmp_path / "told", tmp_path / "agent"
    program.write_text(f'#!/bin/sh\nread -r line\necho "$line" >{told}.draft && mv {told}.draft {told}\n')
    program.chmod(0o755)
    agent = AgentCommand(str(program), "127.0.0.1:1", lambda _: "a certificate\n", "127.0.0.1", 1.0, "ours")
    ssh = SshAgentStarter(run_command, agent, None, HERE, str(tmp_path / "log"))  # type: ignore[arg-type]
    await ssh.submit(f"n{number}", 60.0)
    await wait_until_async(told.exists, 10, "the agent")
    assert base64.b64decode(told.read_text()) == b"a certificate\n"


async def test_an_agent_whose_log_cannot_be_written_is_said_not_to_start(tmp_path: Path) -> None:
    agent = AgentCommand(sys.executable, "127.0.0.1:1", lambda _: "a certificate\n", "127.0.0.1", 1.0, "ours")
    ssh = SshAgentStarter(run_command, agent, None, HERE, str(tmp_path / "none" / "log"))  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"none/log"):
        await ssh.submit("n1", 60.0)


def test_either_placeholders_or_ssh() -> None:
    with pytest.raises(ValueError, match="either queue"):
        HoldSettings(queue="scavenge", ssh=("ssh",))
    assert not HoldSettings().held
