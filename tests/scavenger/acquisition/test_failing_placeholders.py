"""A Scavenger whose placeholders fail, with real processes in place of Slurm's commands, tells its operator why."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from malletrain.cli.jobs.waiting_reasons import placeholder_failures
from malletrain.cli.operate.doctor_checks import examine_placeholders, judge_placeholders
from malletrain.cli.shared.settings import AllSettings
from malletrain.runtime.config import Addresses
from malletrain.scavenger.sources.schedulers.settings import HoldSettings
from malletrain.v1 import scavenger_pb2
from tests.scavenger.recorded_commands import RecordedCommands
from tests.scavenger.running import Running, releasing, running_scavenger
from tests.support.access import CREDENTIAL
from tests.support.channels import knowing_stand_ins, stand_in_authority
from tests.support.ports import free_port
from tests.support.waiting import wait_until_async

WRONG_ACCOUNT = "error: Batch job submission failed: Invalid account or account/partition combination specified"
NODES = 40


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedCommands:
    """Slurm's commands: many nodes are idle, and nothing is submitted."""
    folder = tmp_path / "bin"
    folder.mkdir()
    found = RecordedCommands(folder)
    found.add("sinfo", f"idle|n[001-{NODES:03d}]\n")
    found.add("scontrol", "No reservations in the system\n")
    for name in ("squeue", "sbatch", "scancel"):
        found.add(name)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return found


@asynccontextmanager
async def holding(folder: Path, hold: Mapping[str, object]) -> AsyncIterator[Running]:
    """A Scavenger that has work for all nodes and holds them by placeholders."""
    defaults = {"queue": "scavenge", "agents_address": f"127.0.0.1:{free_port()}", "backoff_seconds": 0.2}
    slurm = {"partitions": ["main"], "interval_seconds": 0.1, "hold": defaults | dict(hold)}
    section = {"source": "slurm", "debounce_seconds": 0, "slurm": slurm}
    async with releasing(NODES) as (_, job_manager), running_scavenger(folder, section, job_manager) as scavenger:
        yield scavenger


async def placeholders(scavenger: Running) -> scavenger_pb2.PlaceholderStatus:
    status = await scavenger.stub.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=5)
    (found,) = status.placeholders
    return found


async def doctor(scavenger: Running, folder: Path) -> dict[str, Any]:
    """What `malletrain doctor` finds of placeholders."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "malletrain.cli.main", "doctor", "--source", "slurm", "--json"),
        env=os.environ
        | {
            "MALLETRAIN_ADDRESSES__SCAVENGER": scavenger.address,
            "MALLETRAIN_TLS__AUTHORITY_FILE": str(stand_in_authority()),
            "MALLETRAIN_TOKEN": CREDENTIAL.towards("scavenger").token(),
        },
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 1
    (found,) = (entry for entry in json.loads(output) if entry["check"] == "placeholders of slurm")
    return found


async def until_failures(scavenger: Running, number: int) -> scavenger_pb2.PlaceholderStatus:
    async with asyncio.timeout(30):
        while (found := await placeholders(scavenger)).failures_in_a_row < number:
            await asyncio.sleep(0.02)
    return found


@pytest.mark.processes
async def test_a_wrong_account_is_tried_a_few_times_and_told_in_the_schedulers_words(
    tmp_path: Path, commands: RecordedCommands
) -> None:
    commands.fails("sbatch", 1, WRONG_ACCOUNT)
    async with holding(tmp_path, {"pause_after_failures": 3, "backoff_max_seconds": 500}) as scavenger:
        found = await until_failures(scavenger, 3)
        assert found.paused
        assert WRONG_ACCOUNT in found.error
        assert found.node.startswith("n0")
        assert (found.running, found.pending) == (0, 0)
        assert len(commands.calls("sbatch")) == 3, "not once for each of the idle nodes"
        now = found.retry_time.ToNanoseconds() / 1e9 - 480
        (line,) = placeholder_failures([found], now)
        start = "placeholders of slurm are paused after 3 failures in a row, next attempt in 8m 00s; node n0"
        assert line.startswith(start)
        assert line.endswith(WRONG_ACCOUNT)
        finding = await doctor(scavenger, tmp_path)
        assert not finding["ok"]
        assert "failed 3 times in a row, paused" in finding["found"]
        assert WRONG_ACCOUNT in finding["found"]
        assert "account, quota and options" in finding["remedy"]


@pytest.mark.processes
async def test_after_the_delay_one_is_tried_and_what_ends_at_once_is_told(
    tmp_path: Path, commands: RecordedCommands
) -> None:
    commands.fails("sbatch", 1, WRONG_ACCOUNT)
    async with holding(tmp_path, {"pause_after_failures": 2, "backoff_max_seconds": 0.5}) as scavenger:
        await until_failures(scavenger, 2)
        tried = len(commands.calls("sbatch"))
        commands.fails("sbatch", None)
        commands.says("sbatch", "777\n")
        commands.says("squeue", "")  # it has ended by the time it is asked for
        await wait_until_async(lambda: len(commands.calls("sbatch")) > tried, 30, "a probe")
        async with asyncio.timeout(30):
            while "777 ended before its agent had reported" not in (found := await placeholders(scavenger)).error:
                await asyncio.sleep(0.02)
        assert found.failures_in_a_row >= 3
        assert any("--states=all --jobs=777" in call for call in commands.calls("squeue"))


def test_placeholders_that_fare_well_are_no_news() -> None:
    well = scavenger_pb2.PlaceholderStatus(source="slurm", running=3)
    assert placeholder_failures([well], 0.0) == []


def test_the_doctor_is_content_with_placeholders_that_fare_well_and_silent_without_a_scavenger() -> None:
    finding = judge_placeholders(scavenger_pb2.PlaceholderStatus(source="slurm", running=3, pending=1))
    assert (finding.ok, finding.found, finding.remedy) == (True, "3 nodes held, 1 placeholders wait", "")
    assert list(examine_placeholders(AllSettings(addresses=Addresses(scavenger="127.0.0.1:1")))) == []


async def test_the_doctor_tells_who_may_not_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_scavenger(tmp_path, {"source": "static", "nodes": ["n1"]}) as scavenger:
        monkeypatch.setenv("MALLETRAIN_TOKEN", "nonsense")
        settings = knowing_stand_ins(AllSettings(addresses=Addresses(scavenger=scavenger.address)))
        (finding,) = await asyncio.to_thread(lambda: list(examine_placeholders(settings)))
    assert not finding.ok
    assert "the services do not know you" in finding.found


def test_the_longest_delay_is_at_least_the_first() -> None:
    with pytest.raises(ValueError, match="backoff_max_seconds of at least backoff_seconds"):
        HoldSettings(backoff_seconds=20, backoff_max_seconds=10)
