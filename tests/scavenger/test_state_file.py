"""What outlives a Scavenger: one file, which takes over the files of earlier versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from malletrain.runtime.config import Settings
from malletrain.scavenger.idle_trace import Fragment, Trace
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.build import build_source
from malletrain.scavenger.sources.schedulers.pbs import pbs_source
from malletrain.scavenger.sources.schedulers.settings import PbsSettings, SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm import slurm_source
from malletrain.scavenger.state_file import RECLAIM_COOLDOWNS, STATE_FILE, TRACE_ORIGIN, ScavengerStateFile
from malletrain.scavenger.trace_files import write_trace
from malletrain.v1 import scavenger_pb2
from tests.scavenger.running import running_scavenger
from tests.support.clocks import ManualClock

FAR = 10_000_000_000.0  # in the year 2286
NOW = 1_800_000_000.0
STATIC = {"source": "static", "nodes": ["n1", "n2"]}


def test_sections_outlive_the_process_and_do_not_disturb_each_other(tmp_path: Path) -> None:
    file = ScavengerStateFile(tmp_path)
    assert file.section(TRACE_ORIGIN) == {}
    file.write(RECLAIM_COOLDOWNS, {"n1": 5.0})
    file.write(TRACE_ORIGIN, {"key": 1})
    file.write(RECLAIM_COOLDOWNS, {"n2": 6.0})
    again = ScavengerStateFile(tmp_path)
    assert (again.section(RECLAIM_COOLDOWNS), again.section(TRACE_ORIGIN)) == ({"n2": 6.0}, {"key": 1})
    assert [path.name for path in tmp_path.iterdir()] == [STATE_FILE]


@pytest.mark.parametrize("content", ["", "[]", '{"reclaim_cooldowns": 1', '{"reclaim_cooldowns": []}', "\x00"])
def test_a_broken_file_is_as_good_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / STATE_FILE).write_text(content)
    file = ScavengerStateFile(tmp_path)
    assert file.section(RECLAIM_COOLDOWNS) == {}
    file.write(RECLAIM_COOLDOWNS, {"n1": 5.0})
    assert ScavengerStateFile(tmp_path).section(RECLAIM_COOLDOWNS) == {"n1": 5.0}


def test_a_file_that_cannot_be_written_is_an_error_or_logged(tmp_path: Path) -> None:
    file = ScavengerStateFile(tmp_path / "missing")
    with pytest.raises(OSError, match="missing"):
        file.write(RECLAIM_COOLDOWNS, {})
    file.try_write(RECLAIM_COOLDOWNS, {})


async def test_reclaims_of_version_0_1_0_still_count(tmp_path: Path) -> None:
    (tmp_path / "scavenger-holds.json").write_text(json.dumps({"n1": FAR}))
    for _ in range(2):  # the second time from the new file
        async with running_scavenger(tmp_path, STATIC) as scavenger:
            assert await scavenger.nodes() == ["n2"]
            request = scavenger_pb2.ReportNodeFailuresRequest(failures=[scavenger_pb2.NodeFailure(node="n2")])
            await scavenger.stub.ReportNodeFailures(request, timeout=5)
    assert [path.name for path in tmp_path.glob("scavenger*.json")] == [STATE_FILE]


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
async def test_idle_ages_of_version_0_1_0_are_known(tmp_path: Path, scheduler: str) -> None:
    content = {"time": NOW - 60, "idle_since": {"n1": NOW - 5000}, "lengths": [10.0, 20.0]}
    (tmp_path / f"scavenger-{scheduler}.json").write_text(json.dumps(content))
    for _ in range(2):
        file, clock = ScavengerStateFile(tmp_path), ManualClock(NOW)
        source = (
            slurm_source(SlurmSettings(partitions=("main",)), clock, state_file=file)
            if scheduler == "slurm"
            else pbs_source(PbsSettings(), clock, state_file=file)
        )
        assert source.past_lengths() == (10.0, 20.0)
        await source.close()
        assert ScavengerStateFile(tmp_path).section(f"idle_ages_{scheduler}")["idle_since"] == {"n1": NOW - 5000}
        assert not (tmp_path / f"scavenger-{scheduler}.json").exists()


async def test_a_replay_that_version_0_1_0_began_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_trace(Trace((Fragment("a", 0, 50),), ("a",), 100.0), path)
    section = ScavengerSettings(source="trace", trace=path, speed=2.0)
    status = path.stat()
    key = {
        "path": str(path),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "speed": 2.0,
        "start_s": 0.0,
        "duration_s": 0.0,
        "trace_nodes": 0,
    }
    (tmp_path / "scavenger-origin.json").write_text(json.dumps({"key": key, "origin_unix_seconds": NOW - 30}))
    file = ScavengerStateFile(tmp_path)
    source = build_source(section, Settings(state_dir=tmp_path), file, ManualClock(NOW))
    assert source.past_lengths() == [25.0], "30 s at speed 2 after the start, the fragment of 50 s has ended"
    await source.close()
    assert ScavengerStateFile(tmp_path).section(TRACE_ORIGIN) == {}, "a graceful end"
