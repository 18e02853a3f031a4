from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from malletrain.cli.main import application
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.slurm_queue import NODES_FORMAT, QUEUE_FORMAT
from tests.scavenger.recorded_commands import RecordedCommands

RECORDED = Path(__file__).parent / "slurm_queue"
RECORDED_LUA = Path(__file__).parent / "slurm_queue_lua"
TIB = 1024


def invoke(*options: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(application(), ["advise", "--source", "slurm", *options], env=env)


def advised(*options: str, folder: Path = RECORDED) -> dict[str, Any]:
    done = invoke("--from", str(folder), "--json", *options)
    assert done.exit_code == 0, (done.output, done.exception)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def started(advice: dict[str, Any]) -> dict[str, list[str]]:
    return {way["name"]: way["jobs"] for way in advice["starts"]}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED, tmp_path / "recorded"))


def change(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_table_1_on_a_machine_with_other_jobs() -> None:
    advice = advised()
    assert (advice["nodes"], advice["freeNodes"]) == (104, 100)
    assert (advice["burstBuffer"], advice["burstBufferGb"]) == ("datawarp/wlm_pool", 102 * TIB)
    assert advice["freeBurstBufferGb"] == 100 * TIB
    assert [(job["job"], job["nodes"], job["burstBufferGb"] // TIB) for job in advice["window"]] == [
        ("101", 80, 20),
        ("102", 10, 85),
        ("103", 40, 5),
        ("104_1", 10, 0),
        ("105", 20, 0),
    ]
    assert started(advice) == {
        "until-first-misfit": ["101"],
        "in-order": ["101", "104_1"],
        "bbsched": ["102", "103", "104_1", "105"],
    }
    until, ordered, method = advice["starts"]
    assert (until["gainNodesPoints"], until["gainBurstBufferPoints"]) == pytest.approx((0, 100 * 70 / 102))
    assert ordered["gainNodesPoints"] == pytest.approx(-100 * 10 / 104)
    assert (method["nodes"], method["burstBufferGb"], method["gainNodesPoints"]) == (80, 90 * TIB, 0)


def test_who_is_left_out() -> None:
    advice = advised()
    assert advice["waiting"] == 11
    assert advice["leftOut"] == {
        "Dependency": 1,
        "JobHeldUser": 1,
        "part of a heterogeneous job": 1,
        "PartitionConfig": 1,
        "asks for more than the machine has": 1,
        "ReqNodeNotAvail": 1,
    }


def test_a_queue_recorded_on_a_real_slurm() -> None:
    options = ("--partition", "main", "--burst-buffer-name")
    advice = advised(*options, "flash", folder=RECORDED_LUA)
    assert (advice["nodes"], advice["freeNodes"]) == (6, 2)
    assert (advice["burstBufferGb"], advice["freeBurstBufferGb"]) == (100, 20)
    assert [(job["job"], job["nodes"], job["burstBufferGb"], job.get("heldGb", 0)) for job in advice["window"]] == [
        ("5", 5, 0, 20),
        ("6", 2, 50, 0),
        ("7", 3, 0, 0),
        ("8", 3, 30, 0),
        ("10_1", 1, 0, 10),
        ("10_2", 1, 0, 10),
    ]
    assert advice["leftOut"] == {"BeginTime": 1, "Dependency": 1, "JobHeldUser": 1}
    assert started(advice) == {"until-first-misfit": [], "in-order": ["10_1", "10_2"], "bbsched": ["10_1", "10_2"]}
    other = advised(*options, "archive", folder=RECORDED_LUA)
    assert (other["burstBufferGb"], other["freeBurstBufferGb"]) == (64000, 63968)
    assert other["leftOut"]["asks for another burst buffer"] == 5
    assert [job["job"] for job in other["window"]] == ["7"]


def test_a_reason_cannot_steer_the_terminal(copied: Path) -> None:
    change(copied, "squeue.txt", "|Dependency|", "|Depend\x1b[31mency|")
    assert advised(folder=copied)["leftOut"]["Depend?[31mency"] == 1


def test_for_people() -> None:
    done = invoke("--from", str(RECORDED))
    assert done.exit_code == 0, done.output
    assert "free: 100 of 104 nodes, 102,400 of 104,448 GB of burst buffer (datawarp/wlm_pool)" in done.output
    assert "1 Dependency" in done.output
    assert "bbsched passes over job 101, the first of the queue" in done.output
    assert "backfilling (EASY)" in done.output


def test_other_methods_windows_and_factors() -> None:
    assert started(advised("--method", "constrained-cpu"))["constrained-cpu"] == ["101", "105"]
    assert started(advised("--trade-off", "10"))["bbsched"] == ["101", "105"]
    assert [job["job"] for job in advised("--selection-window", "2")["window"]] == ["101", "102"]
    assert started(advised("--method", "in-order")).keys() == {"until-first-misfit", "in-order"}


def test_orders(copied: Path) -> None:
    assert [job["job"] for job in advised("--policy", "fcfs")["window"]] == ["105", "102", "101", "103", "104_1"]
    at = 1795336200  # 2026-11-22T08:30:00
    os.utime(copied / "squeue.txt", (at, at))
    # (wait / limit)^3 · nodes: 1.25 of 101, 0.0024 of 102, 0.007 of 103, 0.37 of 104_1; 105 has no limit.
    window = advised("--policy", "wfp", folder=copied)["window"]
    assert [job["job"] for job in window] == ["101", "104_1", "103", "102", "105"]


def test_a_partition() -> None:
    advice = advised("--partition", "debug")
    assert (advice["nodes"], advice["freeNodes"]) == (4, 0)
    # Of the two jobs there one wants more nodes than the partition has.
    assert advice["window"] == []
    assert started(advice) == {"until-first-misfit": [], "in-order": [], "bbsched": []}
    assert "no waiting job can be started" in invoke("--from", str(RECORDED), "--partition", "debug").output


def test_an_empty_queue(copied: Path) -> None:
    (copied / "squeue.txt").write_text("")
    advice = advised(folder=copied)
    assert (advice["waiting"], advice["window"], advice["leftOut"]) == (0, [], {})


def test_a_burst_buffer_of_which_slurm_tells_nothing(copied: Path) -> None:
    (copied / "scontrol-burst.txt").unlink()
    advice = advised("--burst-buffer", str(102 * TIB), folder=copied)
    # Job 90 runs and has 2 TiB.
    assert (advice["burstBufferGb"], advice["freeBurstBufferGb"]) == (102 * TIB, 100 * TIB)
    assert started(advice)["bbsched"] == ["102", "103", "104_1", "105"]


def test_without_any_burst_buffer_only_nodes_count(copied: Path) -> None:
    (copied / "scontrol-burst.txt").write_text("No burst buffer information available\n")
    advice = advised(folder=copied)
    assert [job["job"] for job in advice["window"]] == ["104_1", "105"]
    assert advice["leftOut"]["asks for burst buffer, and Slurm tells of none"] == 4
    assert "--burst-buffer GB gives its size" in invoke("--from", str(copied)).output


def test_several_burst_buffers_are_named_and_one_is_chosen(copied: Path) -> None:
    other = "  PoolName[0]=fast Granularity=1 TotalSpace=9TiB FreeSpace=9TiB UsedSpace=0\n  Flags="
    change(copied, "scontrol-burst.txt", "  Flags=", other)
    done = invoke("--from", str(copied))
    assert isinstance(done.exception, InvalidInputError)
    assert "--burst-buffer-name: expected one of" in str(done.exception)
    assert "datawarp/wlm_pool, datawarp/fast" in str(done.exception)
    advice = advised("--burst-buffer-name", "fast", folder=copied)
    assert (advice["burstBuffer"], advice["burstBufferGb"]) == ("datawarp/fast", 9 * TIB)
    assert advice["leftOut"]["asks for another burst buffer"] == 4
    assert advised("--burst-buffer-name", "datawarp/wlm_pool", folder=copied)["burstBufferGb"] == 102 * TIB
    wrong = invoke("--from", str(copied), "--burst-buffer-name", "slow")
    assert isinstance(wrong.exception, InvalidInputError)


def test_a_waiting_job_that_has_its_burst_buffer_already(copied: Path) -> None:
    held = "    JobID=101 CreateTime=2026-11-22T08:01:00 Pool=wlm_pool Size=20TiB State=staged-in UserID=alan(1000)\n"
    change(copied, "scontrol-burst.txt", "  Per User", f"{held}  Per User")
    change(copied, "scontrol-burst.txt", "FreeSpace=100TiB UsedSpace=2TiB", "FreeSpace=80TiB UsedSpace=22TiB")
    advice = advised(folder=copied)
    assert advice["window"][0] == {"job": "101", "nodes": 80, "burstBufferGb": 0, "heldGb": 20 * TIB}
    assert advice["freeBurstBufferGb"] == 80 * TIB
    assert "(has 20,480 already)" in invoke("--from", str(copied)).output


def test_a_request_that_cannot_be_read(copied: Path) -> None:
    change(copied, "squeue.txt", "capacity=5TiB", "capacity=5.5TiB")
    done = invoke("--from", str(copied))
    assert isinstance(done.exception, SourceError)
    assert not isinstance(done.exception, InvalidInputError)
    assert "squeue, line 5: burst buffer of job 103" in str(done.exception)
    advice = advised("--skip-unreadable", folder=copied)
    assert advice["leftOut"]["burst-buffer request can't be read"] == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--method", "constrained-ssd"), "--method: expected a method for nodes and burst buffer"),
        (("--trade-off", "-1"), "--trade-off"),
        (("--trade-off", "much"), "--trade-off"),
        (("--partition", "-x"), "--partition: expected one of"),
        (("--partition", "a,b"), "--partition: expected the name of a partition"),
        (("--partition", "gpu"), "--partition: expected one of debug, main"),
        (("--burst-buffer", "5", "--burst-buffer-name", "a"), "--burst-buffer-name: expected nothing beside"),
    ],
)
def test_wrong_use(options: tuple[str, ...], error: str) -> None:
    done = invoke("--from", str(RECORDED), *options)
    assert isinstance(done.exception, InvalidInputError)
    assert error in str(done.exception)


@pytest.mark.parametrize("name", ["squeue.txt", "sinfo.txt", "scontrol-burst.txt"])
def test_a_missing_file(copied: Path, name: str) -> None:
    (copied / name).unlink()
    done = invoke("--from", str(copied))
    assert isinstance(done.exception, InvalidInputError)
    assert name in str(done.exception)


@pytest.mark.parametrize("options", [("--selection-window", "0"), ("--burst-buffer", "-1"), ("--method", "best")])
def test_options_out_of_range(options: tuple[str, ...]) -> None:
    assert invoke("--from", str(RECORDED), *options).exit_code == 2


class Played:
    """A Slurm that plays the recorded answers."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.commands = RecordedCommands(folder)
        self.env = {"MALLETRAIN_STATE_DIR": str(folder), "MALLETRAIN_SCAVENGER__SLURM__TIMEOUT_SECONDS": "20"}
        for name, file in (("squeue", "squeue"), ("sinfo", "sinfo"), ("scontrol", "scontrol-burst")):
            path = self.commands.add(name, (RECORDED / f"{file}.txt").read_text())
            self.env[f"MALLETRAIN_SCAVENGER__SLURM__{name.upper()}"] = path


def test_slurm_is_asked_and_nothing_is_changed(tmp_path: Path) -> None:
    played = Played(tmp_path / "bin")
    done = invoke("--json", env=played.env)
    assert done.exit_code == 0, (done.output, done.exception)
    assert started(json.loads(done.stdout)) == started(advised())
    assert played.commands.calls("squeue") == [f"-h -r --noconvert -t PD -O {QUEUE_FORMAT}"]
    assert played.commands.calls("sinfo") == [f"-h -o {NODES_FORMAT}"]
    assert played.commands.calls("scontrol") == ["show burst"]


def test_partitions_are_those_of_the_settings(tmp_path: Path) -> None:
    played = Played(tmp_path / "bin")
    done = invoke("--json", env={**played.env, "MALLETRAIN_SCAVENGER__SLURM__PARTITIONS": '["main"]'})
    assert json.loads(done.stdout)["nodes"] == 100
    assert "-p main" in played.commands.calls("squeue")[0]
    assert "-p main" in played.commands.calls("sinfo")[0]


def test_with_a_given_size_running_jobs_are_asked_for_instead(tmp_path: Path) -> None:
    played = Played(tmp_path / "bin")
    assert invoke("--burst-buffer", "104448", env=played.env).exit_code == 0
    assert "-t PD,CF,R,S,CG,SO" in played.commands.calls("squeue")[0]
    assert played.commands.calls("scontrol") == []


@pytest.mark.parametrize("name", ["squeue", "sinfo", "scontrol"])
def test_a_command_that_fails_or_is_missing(tmp_path: Path, name: str) -> None:
    played = Played(tmp_path / "bin")
    played.commands.fails(name, 1)
    failed = invoke(env=played.env)
    assert isinstance(failed.exception, SourceError)
    assert f"{name} ended with status 1: {name}: error: no contact" in str(failed.exception)
    missing = invoke(env={**played.env, f"MALLETRAIN_SCAVENGER__SLURM__{name.upper()}": f"/nowhere/{name}"})
    assert isinstance(missing.exception, SourceError)
    assert f"/nowhere/{name} can't be run" in str(missing.exception)


def test_a_command_that_does_not_answer(tmp_path: Path) -> None:
    played = Played(tmp_path / "bin")
    played.commands.stalls("squeue", True)
    done = invoke(env={**played.env, "MALLETRAIN_SCAVENGER__SLURM__TIMEOUT_SECONDS": "0.3"})
    assert isinstance(done.exception, SourceError)
    assert "has not answered within 0.3 s" in str(done.exception)
