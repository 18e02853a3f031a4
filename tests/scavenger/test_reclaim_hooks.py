"""What administrators install where nodes are watched only: Slurm's Prolog, and the hook of PBS."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from malletrain.runtime.access.identity import Role
from tests.agent.running import RunningAgent
from tests.scavenger.running import releasing, running_scavenger
from tests.support.access import credential_of
from tests.support.channels import stand_in_authority
from tests.support.waiting import wait_until_async

pytestmark = pytest.mark.processes

DEPLOY = Path(__file__).parents[2] / "deploy"
STATIC = {"source": "static", "nodes": ["n2", "n1", "n3"]}
KNOWN = ["-cacert", str(stand_in_authority()), "-authority", "scavenger.malletrain.internal"]
"""How grpcurl knows the Scavenger of a test."""


@pytest.fixture
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("modifyvnode_hook", DEPLOY / "pbs/modifyvnode_hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def token_file(folder: Path) -> Path:
    """A file with an operator's token."""
    path = folder / "operator.token"
    path.write_text(credential_of("prolog", Role.OPERATOR).token() + "\n")
    return path


async def prolog(folder: Path, grpcurl: str, scavenger: str, **slurm: str) -> int:
    """Run the Prolog as slurmd would; its exit status."""
    config = folder / "prolog.conf"
    lines = {"GRPCURL": grpcurl, "SCAVENGER": scavenger, "MARKS": folder / "marks", "TOKEN_FILE": token_file(folder)}
    text = "".join(f"MALLETRAIN_{name}='{value}'\n" for name, value in lines.items())
    config.write_text(f"{text}MALLETRAIN_GRPCURL_OPTIONS=({' '.join(KNOWN)})\n")
    environment = {"PATH": os.environ["PATH"], "MALLETRAIN_PROLOG_CONFIG": str(config), "SLURM_JOB_ID": "7", **slurm}
    process = await asyncio.create_subprocess_exec(str(DEPLOY / "slurm/prolog.sh"), env=environment)
    return await asyncio.wait_for(process.wait(), 30)


async def test_the_prolog_returns_when_the_node_is_free(tmp_path: Path, grpcurl: str) -> None:
    async with releasing() as (releases, address), running_scavenger(tmp_path, STATIC, address) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == {"n1", "n2", "n3"})
        running = asyncio.create_task(
            prolog(tmp_path, grpcurl, scavenger.address, SLURMD_NODENAME="n1", SLURM_JOB_PARTITION="main")
        )
        await wait_until_async(lambda: releases.asked == [["n1"]], timeout=30)
        assert watch.idle == {"n2", "n3"}
        assert not running.done()
        releases.may_release.set()
        assert await running == 0


async def test_the_prolog_has_the_agent_on_its_node_leave(tmp_path: Path, grpcurl: str) -> None:
    mine, other = (RunningAgent(node, tmp_path, "127.0.0.1:9", grace=0.5) for node in ("prolog-1", "prolog-10"))
    try:
        for agent in (mine, other):
            assert agent.address
        assert await prolog(tmp_path, grpcurl, "127.0.0.1:1", SLURMD_NODENAME="prolog-1") == 0
        assert mine.process.wait(1) == 0
        assert other.process.poll() is None
        other.process.send_signal(signal.SIGSTOP)
        assert await prolog(tmp_path, grpcurl, "127.0.0.1:1", SLURMD_NODENAME="prolog-10") == 0
        assert other.process.wait(1) == -signal.SIGKILL
    finally:
        mine.close()
        other.close()


async def test_no_agent_starts_on_a_node_that_the_prolog_has_just_marked(tmp_path: Path) -> None:
    marks = tmp_path / "marks"

    def agent(node: str) -> RunningAgent:
        return RunningAgent(node, tmp_path, "127.0.0.1:9", 0.5, "--marks", str(marks))

    assert await prolog(tmp_path, "/no/such/grpcurl", "", SLURMD_NODENAME="prolog-2") == 0
    late, other = agent("prolog-2"), agent("prolog-3")
    try:
        assert late.process.wait(10) == 0
        assert "has just been taken" in late.said
        assert other.address
    finally:
        late.close()
        other.close()
    os.utime(marks / "prolog-2", (0, 0))
    later = agent("prolog-2")
    try:
        assert later.address
    finally:
        later.close()


async def test_the_prolog_without_a_scavenger_asks_nobody(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    spy = tmp_path / "spy"
    spy.write_text(f"#!/bin/sh\ntouch {asked}\n")
    spy.chmod(0o755)
    assert await prolog(tmp_path, str(spy), "", SLURMD_NODENAME="n1") == 0
    assert not asked.exists()
    assert await prolog(tmp_path, str(spy), "127.0.0.1:1", SLURMD_NODENAME="n1") == 0
    assert asked.exists()


async def test_the_prolog_never_fails_a_job(tmp_path: Path, grpcurl: str) -> None:
    assert await prolog(tmp_path, grpcurl, "127.0.0.1:1", SLURMD_NODENAME="n1") == 0
    assert await prolog(tmp_path, "/no/such/grpcurl", "127.0.0.1:1", SLURMD_NODENAME="n1") == 0
    assert await prolog(tmp_path, grpcurl, "127.0.0.1:1", SLURMD_NODENAME='n1"; rm') == 0


async def test_the_prolog_leaves_our_own_jobs_alone(tmp_path: Path, grpcurl: str) -> None:
    async with releasing() as (releases, address), running_scavenger(tmp_path, STATIC, address) as scavenger:
        await scavenger.nodes()
        own = {"SLURMD_NODENAME": "n1", "SLURM_JOB_PARTITION": "scavenge"}
        assert await prolog(tmp_path, grpcurl, scavenger.address, **own) == 0
        assert await scavenger.nodes() == ["n2", "n1", "n3"]
        assert releases.asked == []


class Pbs:
    """What a hook sees of PBS."""

    LOG_WARNING = 3

    def __init__(self, before: int, after: int, config: Path, name: str = "n1") -> None:
        self.hook_config_filename = str(config)
        self.accepted = 0
        self.logged: list[str] = []
        vnode = SimpleNamespace(name=name, state=after, resources_available={"host": name})
        self._event = SimpleNamespace(vnode=vnode, vnode_o=SimpleNamespace(state=before), accept=self._accept)

    def event(self) -> Any:
        return self._event

    def logmsg(self, level: int, text: str) -> None:
        self.logged.append(text)

    def _accept(self) -> None:
        self.accepted += 1


async def test_the_hook_has_a_node_reclaimed_that_is_no_longer_free(
    tmp_path: Path, grpcurl: str, hook: ModuleType
) -> None:
    async with releasing() as (releases, address), running_scavenger(tmp_path, STATIC, address) as scavenger:
        releases.may_release.set()
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == {"n1", "n2", "n3"})
        config = tmp_path / "hook.json"
        config.write_text(
            json.dumps(
                {
                    "scavenger": scavenger.address,
                    "grpcurl": grpcurl,
                    "options": KNOWN,
                    "token_file": str(token_file(tmp_path)),
                }
            )
        )
        for before, after in ((0x10, 0), (0x10, 0x20), (0, 0)):
            unmoved = Pbs(before, after, config)
            hook.main(unmoved)
            assert (unmoved.accepted, unmoved.logged) == (1, [])
        taken = Pbs(0, 0x10, config)
        hook.main(taken)
        assert (taken.accepted, taken.logged) == (1, [])
        await wait_until_async(lambda: releases.asked == [["n1"]], timeout=30)
        await wait_until_async(lambda: watch.idle == {"n2", "n3"})


def test_the_hook_accepts_whatever_happens(tmp_path: Path, hook: ModuleType) -> None:
    config = tmp_path / "hook.json"
    config.write_text("{")
    for pbs in (Pbs(0, 1, config), Pbs(0, 1, tmp_path / "missing.json"), Pbs(0, 1, config, name="n1; rm")):
        hook.main(pbs)
        assert pbs.accepted == 1
        assert pbs.logged
