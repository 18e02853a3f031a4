"""Auto-tuning with five real services: the replays really run, a step is made, and kills disturb nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from benchmarks.journaling.running import record
from malletrain.cli.main import application
from malletrain.cli.shared.stubs import ServiceStubs
from malletrain.common.processes import process_ids, read_arguments
from malletrain.v1 import allocator_pb2
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.training, pytest.mark.timeout(900)]

SETTINGS = """forward_seconds = 2.5
auto_tune = "apply"
auto_tune_seconds = 30
auto_tune_part_seconds = 5
auto_tune_cpu_share = 1.0"""
"""T_fwd is little more than a growth's stall of 2 s: jobs hardly ever grow."""


def running(folder: Path, *words: str) -> list[int]:
    """Processes of this installation whose command line has these words."""
    config = str(folder / "malletrain.toml")
    found = ((pid, read_arguments(pid)) for pid in process_ids())
    return [pid for pid, line in found if config in line and all(word in line for word in words)]


def tuning(stubs: ServiceStubs) -> allocator_pb2.GetTuningResponse:
    """What the Allocator says; nothing while it is started again."""
    try:
        return stubs.allocator.GetTuning(allocator_pb2.GetTuningRequest(), timeout=5)
    except grpc.RpcError:
        return allocator_pb2.GetTuningResponse()


def generation(stubs: ServiceStubs) -> int:
    return stubs.allocator.GetPlan(allocator_pb2.GetPlanRequest(), timeout=30).plan.generation


def test_a_step_is_made_and_stays_over_kills(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    config = folder / "malletrain.toml"

    def scenes(stubs: ServiceStubs) -> None:
        def events() -> list[int]:
            return [run.event for run in tuning(stubs).runs]

        wait_until(lambda: allocator_pb2.TUNING_EVENT_STEP in events(), 400, "a step")
        stepped = tuning(stubs)
        assert stepped.on_trial
        assert stepped.configured.seconds == 2.5
        assert (stepped.in_force.seconds, stepped.in_force.policy) != (2.5, "constant")
        assert "in place of 2.5 s" in stepped.why
        for command in (("tune", "--status", "--config", str(config)), ("plan", "--config", str(config))):
            shown = CliRunner().invoke(application(), command)
            assert "in place of 2.5 s" in " ".join(shown.output.split()), shown.output

        before = generation(stubs)
        (replaying,) = wait_until(lambda: running(folder, "malletrain.cli.operate.tuning_replays"), 60, "replays")
        os.kill(replaying, signal.SIGKILL)
        wait_until(lambda: allocator_pb2.TUNING_EVENT_FAILED in events(), 120, "a run that failed")
        assert "killed by signal 9" in tuning(stubs).runs[0].reason
        wait_until(lambda: generation(stubs) > before, 60, "further plans")

        wait_until(lambda: running(folder, "malletrain.cli.operate.tuning_replays"), 60, "replays")
        (allocator,) = running(folder, "serve", "allocator")
        os.kill(allocator, signal.SIGKILL)
        wait_until(lambda: not running(folder, "malletrain.cli.operate.tuning_replays"), 10, "the end of the replays")
        again = wait_until(lambda: found if (found := tuning(stubs)).runs else None, 60, "the Allocator")
        assert again is not None
        assert again.in_force == stepped.in_force
        assert again.why == stepped.why
        assert again.on_trial
        wait_until(lambda: len(events()) > len(again.runs), 60, "a run after the restart")

    record(folder, nodes=8, jobs=4, events_per_second=0.3, seconds=150, until=scenes, allocator=SETTINGS)
    assert "forward_seconds = 2.5" in config.read_text()
    assert not running(folder)
