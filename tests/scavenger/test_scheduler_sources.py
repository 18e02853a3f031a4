"""The sources slurm and pbs against executables that play recorded answers: the real path but for the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.machine.observations import Observation
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import NodeSource, SourceError
from malletrain.scavenger.sources.build import build_source
from malletrain.scavenger.sources.mixed import MixedSource
from malletrain.scavenger.sources.schedulers import commands as commands_module
from malletrain.scavenger.sources.schedulers.commands import Input, run_command
from malletrain.scavenger.sources.schedulers.pbs import pbs_source
from malletrain.scavenger.sources.schedulers.settings import PbsSettings, SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm import slurm_source
from malletrain.scavenger.state_file import ScavengerStateFile
from malletrain.v1 import scavenger_pb2
from tests.scavenger.recorded_commands import RecordedCommands
from tests.scavenger.running import running_scavenger
from tests.scavenger.samples import recording
from tests.support.waiting import wait_until_async


@pytest.fixture
def commands(tmp_path: Path) -> RecordedCommands:
    folder = tmp_path / "bin"
    folder.mkdir()
    return RecordedCommands(folder)


def slurm(commands: RecordedCommands, **more: object) -> dict[str, object]:
    section: dict[str, object] = {
        "partitions": ["main"],
        "sinfo": commands.add("sinfo", "idle|g[01-02]\nallocated|g03\n"),
        "squeue": commands.add("squeue", recording("squeue_pending.txt")),
        "scontrol": commands.add("scontrol", "No reservations in the system\n"),
        "interval_seconds": 0.05,
        "timeout_seconds": 5,
        "longest_pause_seconds": 0.2,
        "classes_interval_seconds": 3600,
    }
    return section | more


def pbs(commands: RecordedCommands, **more: object) -> dict[str, object]:
    section: dict[str, object] = {
        "pbsnodes": commands.add("pbsnodes", recording("pbsnodes.json")),
        "qstat": commands.add("qstat", recording("qstat.txt")),
        "pbs_rstat": commands.add("pbs_rstat", recording("pbs_rstat.txt")),
        "interval_seconds": 0.05,
        "longest_pause_seconds": 0.2,
    }
    return section | more


class Held:
    """Placeholders, as a test wants them."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self.ids: frozenset[str] = frozenset()

    def nodes(self) -> frozenset[str]:
        return self.names

    def jobs(self) -> frozenset[str]:
        return self.ids


class Follower:
    """Takes what a source tells."""

    def __init__(self, source: NodeSource) -> None:
        self.seen: list[Observation] = []
        self.task = asyncio.create_task(self._follow(source))

    @property
    def idle(self) -> set[str] | None:
        return set(self.seen[-1].idle) if self.seen else None

    async def _follow(self, source: NodeSource) -> None:
        async for observation in source.observations():
            self.seen.append(observation)


@asynccontextmanager
async def following(source: NodeSource) -> AsyncIterator[Follower]:
    follower = Follower(source)
    try:
        yield follower
        assert not follower.task.done(), follower.task.result()
    finally:
        follower.task.cancel()
        await asyncio.gather(follower.task, return_exceptions=True)


async def test_slurm_is_asked_as_documented_and_at_most_once_per_interval(commands: RecordedCommands) -> None:
    section = SlurmSettings.model_validate(slurm(commands, interval_seconds=0.2, queue_interval_seconds=3600))
    async with following(slurm_source(section, SystemClock())) as follower:
        await wait_until_async(lambda: follower.idle == {"g01", "g02"})
        first = follower.seen[0]
        assert first.ends.keys() == {"g01", "g02"}
        assert first.facts["g01"].pool == "main"
        commands.says("sinfo", "idle|g02\nallocated|g01,g03\n")
        await wait_until_async(lambda: follower.idle == {"g02"})
        assert follower.seen[-1].idle["g02"] == first.idle["g02"]
        commands.says("sinfo", "idle|g[01-02]\nallocated|g03\n")
        await wait_until_async(lambda: follower.idle == {"g01", "g02"})
        # A fragment of its own, younger than the other.
        assert follower.seen[-1].idle["g01"] > first.idle["g01"]
    assert set(commands.calls("sinfo")) == {"-h -p main -o %T|%N", "-h -e -p main -o %G|%f|%c|%m|%N"}
    assert commands.calls("squeue") == ["-h -t PD -o %i|%S|%Y"]
    assert commands.calls("scontrol") == ["-o show reservations"]


async def test_failures_garbage_and_silence_leave_the_picture_until_it_is_stale(commands: RecordedCommands) -> None:
    held = Held()
    section = SlurmSettings.model_validate(slurm(commands, stale_seconds=1.0, timeout_seconds=0.5))
    source = slurm_source(section, SystemClock(), placeholders=held)
    async with following(source) as follower:
        await wait_until_async(lambda: follower.idle == {"g01", "g02"})
        commands.says("sinfo", b"\xff\xfe garbage|||\n")
        await wait_until_async(lambda: source.status().queries[0].failures_in_a_row >= 2)
        assert "expected STATE|NODES" in source.status().queries[0].error
        assert follower.idle == {"g01", "g02"}
        since = follower.seen[-1].idle["g02"]
        held.names = frozenset({"g02"})
        await wait_until_async(lambda: follower.seen[-1].stale)
        # Only what a placeholder holds stays, and only as long as it lives.
        assert follower.idle == {"g02"}
        held.names = frozenset()
        await wait_until_async(lambda: follower.idle == set())
        commands.fails("sinfo", 1)
        commands.says("sinfo", "")
        await wait_until_async(lambda: "no contact" in source.status().queries[0].error)
        commands.fails("sinfo", None)
        commands.stalls("sinfo", True)
        await wait_until_async(lambda: "has not answered within" in source.status().queries[0].error)
        commands.says("sinfo", "idle|g[01-02]\n")
        commands.stalls("sinfo", False)
        await wait_until_async(lambda: follower.idle == {"g01", "g02"})
        assert not follower.seen[-1].stale
        assert follower.seen[-1].idle["g02"] == since
        assert source.status().queries[0].failures_in_a_row == 0


async def test_a_node_that_we_hold_is_ours_while_the_placeholder_lives(commands: RecordedCommands) -> None:
    held = Held()
    section = SlurmSettings.model_validate(slurm(commands, queue_interval_seconds=0.05))
    async with following(slurm_source(section, SystemClock(), placeholders=held)) as follower:
        await wait_until_async(lambda: follower.idle == {"g01", "g02"})
        since = follower.seen[-1].idle["g01"]
        held.names, held.ids = frozenset({"g01"}), frozenset({"41", "43"})
        commands.says("sinfo", "idle|g02\nallocated|g01,g03\n")
        # Our own pending placeholders do not end the idleness of a node.
        await wait_until_async(lambda: not follower.seen[-1].ends)
        assert follower.idle == {"g01", "g02"}
        assert follower.seen[-1].idle["g01"] == since
        held.names = frozenset()
        await wait_until_async(lambda: follower.idle == {"g02"})


async def test_idle_ages_survive_a_restart(tmp_path: Path, commands: RecordedCommands) -> None:
    section = SlurmSettings.model_validate(slurm(commands))
    source = slurm_source(section, SystemClock(), state_file=ScavengerStateFile(tmp_path))
    async with following(source) as follower:
        await wait_until_async(lambda: follower.idle == {"g01", "g02"})
        since = follower.seen[-1].idle["g02"]
        commands.says("sinfo", "idle|g02\nallocated|g01,g03\n")
        await wait_until_async(lambda: follower.idle == {"g02"})
    await source.close()
    again = slurm_source(section, SystemClock(), state_file=ScavengerStateFile(tmp_path))
    assert len(again.past_lengths()) == 1
    async with following(again) as follower:
        await wait_until_async(lambda: follower.idle == {"g02"})
        assert follower.seen[-1].idle["g02"] == since


async def test_patterns_choose_nodes(commands: RecordedCommands) -> None:
    commands.add("sinfo", "idle|g[01-04],c1\n")
    more = {"include": ["g*"], "exclude": ["g[02-03]"]}
    section = SlurmSettings.model_validate(slurm(commands) | more)
    commands.says("sinfo", "idle|g[01-04],c1\n")
    async with following(slurm_source(section, SystemClock())) as follower:
        await wait_until_async(lambda: follower.idle == {"g01", "g04"})
    for wrong in ({"partitions": []}, {"partitions": ["a", "a"]}, {"include": ["n[1-"]}, {"exclude": ["n[1]*"]}):
        with pytest.raises(InvalidInputError, match=r"scavenger\.slurm\."):
            slurm_source(SlurmSettings.model_validate(slurm(commands) | wrong), SystemClock())


async def test_pbs_is_asked_as_documented(commands: RecordedCommands) -> None:
    section = PbsSettings.model_validate(pbs(commands))
    source = pbs_source(section, SystemClock())
    async with following(source) as follower:
        await wait_until_async(lambda: follower.idle == {"p1", "p3", "p8", "p9", "p16", "p18"})
        assert follower.seen[-1].facts["p1"].pool == "pbs"
        assert {"p1", "p8", "p9", "p18"} <= follower.seen[-1].ends.keys()
        commands.fails("pbs_rstat", 1)
        commands.says("pbsnodes", "{")
        await wait_until_async(lambda: source.status().queries[0].failures_in_a_row >= 2)
        assert follower.idle == {"p1", "p3", "p8", "p9", "p16", "p18"}
    assert set(commands.calls("pbsnodes")) == {"-av -F json"}
    assert commands.calls("qstat") == ["-f -w"]
    assert commands.calls("pbs_rstat") == ["-f"]


async def test_a_node_in_an_unknown_state_is_told_once(
    commands: RecordedCommands, capsys: pytest.CaptureFixture[str]
) -> None:
    section = SlurmSettings.model_validate(slurm(commands))
    commands.says("sinfo", "idle|g01\nhibernating|g[02-03]\n")
    async with following(slurm_source(section, SystemClock())) as follower:
        await wait_until_async(lambda: follower.idle == {"g01"})
        commands.says("sinfo", "idle|g01\nhibernating|g02\nallocated|g03\n")
        await wait_until_async(lambda: len(follower.seen) > 3)
        commands.says("sinfo", "idle|g[01,03]\nhibernating|g02\n")
        await wait_until_async(lambda: follower.idle == {"g01", "g03"})
    told = [line for line in capsys.readouterr().out.splitlines() if "state that is not known" in line]
    assert len(told) == 2
    assert "node=g02" in told[0]
    assert "state=hibernating" in told[0]


async def test_a_long_answer_is_parsed_like_a_short_one(commands: RecordedCommands) -> None:
    variables = f"Job Id: 19.head\n    job_state = R\n    Variable_List = A={'x' * (1 << 19)}\n\n"
    section = PbsSettings.model_validate(pbs(commands))
    commands.says("qstat", variables + recording("qstat.txt"))
    async with following(pbs_source(section, SystemClock())) as follower:
        await wait_until_async(lambda: follower.idle is not None and "p18" in follower.seen[-1].ends)


async def test_reserved_nodes_are_not_idle_while_reservations_are_unknown(commands: RecordedCommands) -> None:
    section = PbsSettings.model_validate(pbs(commands))
    commands.fails("pbs_rstat", 1)
    async with following(pbs_source(section, SystemClock())) as follower:
        await wait_until_async(lambda: follower.idle == {"p1", "p3", "p16", "p18"})


async def test_two_schedulers_at_once(commands: RecordedCommands) -> None:
    clock = SystemClock()
    mixed = MixedSource(
        [
            slurm_source(SlurmSettings.model_validate(slurm(commands)), clock),
            pbs_source(PbsSettings.model_validate(pbs(commands, queues=["main"])), clock),
        ]
    )
    async with following(mixed) as follower:
        await wait_until_async(lambda: follower.idle == {"g01", "g02", "p1", "p3", "p8", "p9", "p18"})
        pools = {name: follower.seen[-1].facts[name].pool for name in follower.seen[-1].idle}
        assert {pools["g01"], pools["p1"]} == {"main", "pbs"}
        # A node that both know is idle only if both say so.
        commands.says("sinfo", "idle|g02,p8\nallocated|g01,p1\n")
        await wait_until_async(lambda: follower.idle == {"g02", "p3", "p8", "p9", "p18"})
    assert {status.source for status in mixed.status().queries} == {"slurm", "pbs"}


async def test_commands_leave_nothing_behind_and_say_what_went_wrong(commands: RecordedCommands) -> None:
    with pytest.raises(SourceError, match="can't be run"):
        await run_command(["/no/such/sinfo"], 1)
    commands.add("sinfo")
    commands.stalls("sinfo", True)
    with pytest.raises(SourceError, match=r"has not answered within 0\.2 s"):
        await run_command([str(commands.folder / "sinfo")], 0.2)


async def test_bytes_that_are_no_text_are_replaced(commands: RecordedCommands) -> None:
    commands.add("qstat")
    commands.says("qstat", b"Job_Name = caf\xe9\n")
    assert await run_command([str(commands.folder / "qstat")], 10) == "Job_Name = caf\ufffd\n"


async def test_a_command_that_prints_without_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "MAX_OUTPUT_BYTES", 1 << 20)
    with pytest.raises(SourceError, match="printed more than 1048576 bytes"):
        await run_command(["yes"], 60)
    with pytest.raises(SourceError, match="status 7: y\n\ny"):
        await run_command(["sh", "-c", "yes | head -c 1000000 >&2; exit 7"], 60)


async def test_what_a_command_reads_may_be_a_secret(commands: RecordedCommands) -> None:
    secret = Input("a secret\n" * 50_000)
    assert await run_command(["cat"], 10, secret) == secret.text
    commands.add("sinfo", "it reads nothing")
    assert await run_command([str(commands.folder / "sinfo")], 10, secret) == "it reads nothing"
    for argv, seconds in ((["/no/such/sinfo"], 1.0), (["sh", "-c", "sleep 60"], 0.2), (["sh", "-c", "exit 3"], 10.0)):
        with pytest.raises(SourceError) as raised:
            await run_command(argv, seconds, secret)
        assert "secret" not in f"{raised.value!r} {secret!r}"


async def test_the_service_tells_of_pools_ends_status_and_staleness(tmp_path: Path, commands: RecordedCommands) -> None:
    section = {"source": "slurm", "slurm": slurm(commands, stale_seconds=0.6), "debounce_seconds": 0}
    commands.says("sinfo", "idle|g[01-02]\n")
    async with running_scavenger(tmp_path, section) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == {"g01", "g02"})
        listed = await scavenger.stub.ListNodes(scavenger_pb2.ListNodesRequest(), timeout=5)
        node = listed.nodes[0]
        assert (node.name, node.pool) == ("g01", "main")
        assert node.HasField("idle_until")
        assert node.expected_stay_seconds > 0
        status = await scavenger.stub.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=5)
        assert (status.source, status.seen, status.stale) == ("slurm", True, False)
        assert {query.query for query in status.queries} == {"nodes", "queue", "reservations", "classes"}
        assert all(query.asked for query in status.queries)
        commands.fails("sinfo", 1)
        await wait_until_async(lambda: watch.idle == set())
        status = await scavenger.stub.GetStatus(scavenger_pb2.GetStatusRequest(), timeout=5)
        assert status.stale
        assert status.queries[0].age_seconds > 0.6
        commands.fails("sinfo", None)
        await wait_until_async(lambda: watch.idle == {"g01", "g02"})


async def test_a_node_on_which_work_keeps_failing_leaves(tmp_path: Path, commands: RecordedCommands) -> None:
    section = {"source": "slurm", "slurm": slurm(commands), "debounce_seconds": 0}
    async with running_scavenger(tmp_path, section) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == {"g01", "g02"})
        failure = scavenger_pb2.NodeFailure(node="g01", reason="NCCL: unhandled system error")
        for expected in (0, 0, 1):
            request = scavenger_pb2.ReportNodeFailuresRequest(failures=[failure])
            response = await scavenger.stub.ReportNodeFailures(request, timeout=5)
            assert len(response.quarantined) == expected
        (quarantined,) = response.quarantined
        assert (quarantined.name, quarantined.failures) == ("g01", 3)
        assert "NCCL" in quarantined.reason
        await wait_until_async(lambda: watch.idle == {"g02"})
    async with running_scavenger(tmp_path, section) as scavenger:
        # Over a restart, too.
        watch = scavenger.watch()
        await wait_until_async(lambda: watch.idle == {"g02"})


def test_two_schedulers_whose_agents_would_report_to_one_address_are_refused(tmp_path: Path) -> None:
    held = {"hold": {"queue": "scavenge"}}
    section = ScavengerSettings.model_validate({"source": "slurm+pbs", "slurm": held, "pbs": held})
    with pytest.raises(InvalidInputError, match=r"scavenger\.pbs\.hold\.agents_address"):
        build_source(section, Settings(state_dir=tmp_path), ScavengerStateFile(tmp_path), SystemClock())
