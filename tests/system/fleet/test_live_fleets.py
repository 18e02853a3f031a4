"""Real fleets on virtual nodes: a shared feed, members that converge, nodes that are taken, and kills.

`make test-fleet`
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.common.gpus import node_of
from malletrain.common.job_folder import SUPERVISOR_FILE
from tests.client.feed.running import FeedTrainings
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed
from tests.system.fleet.ensembles import LiveFleet, Network, submit
from tests.training.accounts import accounts_of
from tests.training.trainer_settings import BATCH, SIZE

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1500)]
SECONDS = 400.0
SETTINGS = f"""
[scavenger]
source = "static"
nodes = ["n1", "n2"]
debounce_seconds = 0
[job_manager]
trainer_python = "{sys.executable}"
standby_memory_mib = 1500
"""


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Deployment]:
    with deployed(tmp_path / "state", SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 2, 20, "two idle nodes")
        yield deployment


@pytest.fixture
def feeds(tmp_path: Path) -> Iterator[FeedTrainings]:
    found = FeedTrainings(tmp_path)
    yield found
    found.close()


def wait_batches(fleet: LiveFleet, name: str, more: int = 10) -> None:
    """Wait until a member has done so many more batches."""
    wanted = len(fleet.lines(name)) + more
    wait_until(lambda: len(fleet.lines(name)) >= wanted, SECONDS, f"{more} more batches of {name}")


def served(fleet: LiveFleet, name: str, since: int) -> bool:
    """Whether a feed has prepared samples for a process of a member between two of its batches after the first ones."""
    lines = fleet.lines(name)[since:]
    last = {line["pid"]: line["received"] for line in lines}
    return any(line["received"] < last[line["pid"]] for line in lines)


def check_exact(fleet: LiveFleet, epochs: dict[str, int]) -> None:
    """Each sample of each member's epochs was trained on once; what was lost with a process was done again."""
    for name, count in epochs.items():
        assert accounts_of(fleet.folder(name)).check_epochs() == count


def test_four_networks_through_convergence_losses_and_kills(system: Deployment, feeds: FeedTrainings) -> None:
    fleet = submit(
        system,
        feeds,
        [
            Network("wide", 12, 2, 2, (100.0, 180.0, 250.0), 0.01),
            Network("deep", 6, 4, 3, (95.0, 170.0, 240.0), 0.01),
            Network("slow", 16, 3, 3, (50.0, 95.0, 130.0), 0.01),
            Network("small", 4, 1, 2, (48.0, 90.0, 125.0), 0.01),
        ],
    )
    first = ("wide", "deep", "slow")
    wait_until(lambda: all(fleet.states()[name] == "RUNNING" for name in first), SECONDS, "the first flotilla")
    plan = fleet.status()["plan"]
    names = {job: name for name, job in fleet.jobs.items()}
    assert {names[share["jobId"]]: share["gpus"] for share in plan["flotilla"]} == {"wide": 1, "deep": 1, "slow": 2}
    assert fleet.states()["small"] == "WAITING"
    for name in first:
        wait_batches(fleet, name)
    slow = fleet.lines("slow")
    assert {line["visible"] for line in slow} == {line["gpu"].partition("#")[2] for line in slow}
    assert all(any(line["received"] for line in fleet.lines(name)) for name in first)

    os.kill(fleet.lines("deep")[-1]["pid"], signal.SIGKILL)
    wait_batches(fleet, "deep", 20)
    killed = feeds.feed_processes()
    assert killed, "members share a feed"
    before_kill = {name: len(fleet.lines(name)) for name in first}
    for feed in killed:
        feed.kill()
    for name in first:
        wait_batches(fleet, name)
    # Another feed serves them.
    wait_until(lambda: any(served(fleet, name, since) for name, since in before_kill.items()), SECONDS, "a new feed")
    assert {process.pid for process in feeds.feed_processes()}.isdisjoint({process.pid for process in killed})
    os.kill(json.loads((fleet.folder("slow") / SUPERVISOR_FILE).read_text())["pid"], signal.SIGKILL)
    wait_batches(fleet, "slow", 20)

    before = system.pids()["allocator"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: system.pids().get("allocator", before) != before, SECONDS, "another Allocator")

    taken = node_of(fleet.lines("slow")[-1]["gpu"])
    assert system.command("drain", taken).returncode == 0
    held = [gpu for job in system.json("jobs") for gpu in job["commandedNodes"]]
    assert taken not in {node_of(gpu) for gpu in held}
    wait_until(lambda: any(state == "RUNNING" for state in fleet.states().values()), SECONDS, "a member that trains")
    assert system.command("resume", taken).returncode == 0
    wait_until(lambda: fleet.ended("wide"), SECONDS, "convergence of wide")
    wait_until(lambda: fleet.lines("small"), SECONDS, "another flotilla")
    wait_until(fleet.ended, SECONDS, "the end of all members")
    check_exact(fleet, {"wide": 2, "deep": 3, "slow": 3, "small": 2})


def test_each_service_is_killed_and_no_member_notices(system: Deployment, feeds: FeedTrainings) -> None:
    networks = [Network("a", 8, 2, 40, (100.0, 150.0), 0.02), Network("b", 4, 3, 40, (90.0, 140.0), 0.02)]
    fleet = submit(system, feeds, networks, planner="list", max_nodes=1, max_epochs=40)
    for name in fleet.jobs:
        wait_batches(fleet, name)
    workers = {name: {line["pid"] for line in fleet.lines(name)} for name in fleet.jobs}
    for service in ("scavenger", "monitor", "profiler", "job_manager", "allocator"):
        before = system.pids()[service]
        os.kill(before, signal.SIGKILL)

        def again(service: str = service, before: int = before) -> bool:
            return system.pids().get(service, before) != before

        wait_until(again, SECONDS, f"another {service}")
        for name in fleet.jobs:
            wait_batches(fleet, name)
    wait_until(lambda: system.command("health").returncode == 0, SECONDS, "services that answer")
    # The services know the fleet again, and what its feed does.
    wait_until(lambda: set(fleet.states().values()) == {"RUNNING"}, SECONDS, "members that run")
    wait_until(lambda: fleet.status()["feed"], SECONDS, "what the feed does")
    status = fleet.status()
    assert status["feed"]["receivedSamples"] > 0
    assert status["feed"]["processes"] >= 1
    assert status["feed"]["ratePerNode"] >= status["feed"]["ratePerCore"] > 0
    assert status["waiting"] == []
    assert {name: {line["pid"] for line in fleet.lines(name)} for name in fleet.jobs} == workers, "nobody was restarted"
    for name in fleet.jobs:
        accounts = accounts_of(fleet.folder(name))
        assert accounts.repeated == []
        accounts.check_epochs()
    assert system.command("cancel", fleet.id).returncode == 0
    wait_until(lambda: set(fleet.states().values()) == {"CANCELLED"}, SECONDS, "the end of the fleet")


def test_losses_are_equal_with_a_feed_and_without(system: Deployment, feeds: FeedTrainings) -> None:
    networks = [Network("a", 8, 2, 1, (100.0, 150.0)), Network("b", 4, 3, 1, (90.0, 140.0))]
    losses = []
    for options in ((), ("--no-feed",)):
        fleet = submit(system, feeds, networks, *options, planner="list", max_nodes=1)
        wait_until(fleet.ended, SECONDS, "the end of all members")
        lines = {name: fleet.lines(name) for name in fleet.jobs}
        losses.append({name: [(line["before"], line["loss"]) for line in own] for name, own in lines.items()})
        received = max(line["received"] for own in lines.values() for line in own)
        assert (received > 100 * BATCH) == (not options)
        check_exact(fleet, {"a": 1, "b": 1})
    assert losses[0] == losses[1]


def test_feeds_of_two_nodes_prepare_each_sample_once(system: Deployment, feeds: FeedTrainings) -> None:
    networks = [Network(name, 4, 1, 2, (50.0, 51.0), 0.03) for name in ("a", "b", "c", "d")]
    fleet = submit(system, feeds, networks, planner="list", max_nodes=2, max_epochs=2)
    for name in fleet.jobs:
        wait_batches(fleet, name)
    assert len(feeds.feed_processes()) == 2
    wait_until(fleet.ended, SECONDS, "the end of all members")
    check_exact(fleet, dict.fromkeys(fleet.jobs, 2))
    lines = {name: fleet.lines(name) for name in fleet.jobs}
    assert {node_of(line["gpu"]) for own in lines.values() for line in own} == {"n1", "n2"}
    by_number = [{line["before"]: line["loss"] for line in own} for own in lines.values()]
    assert by_number.count(by_number[0]) == len(by_number), "equal networks, equal samples"
    # Until the feeds have found each other, both prepare; apart, it would be twice as many.
    prepared = (feeds.folder / "prepared.log").read_text().splitlines()
    assert len(prepared) < 1.5 * 2 * SIZE
    assert len({line.split()[1] for line in prepared}) >= 2


def test_rates_are_measured_on_one_gpu_and_then_on_more(system: Deployment, feeds: FeedTrainings) -> None:
    networks = [Network("a", 8, 2, 8, (), 0.01), Network("b", 4, 3, 8, (), 0.01)]
    fleet = submit(system, feeds, networks, planner="makespan", max_nodes=1, max_epochs=8)
    reasons: dict[str, None] = {}

    def chosen() -> bool:
        plan = fleet.status()["plan"]
        reasons.setdefault(plan["reason"] if plan else "")
        return "makespan as the fleet asks for" in reasons

    wait_until(chosen, SECONDS, "rates that are known")
    told = [reason.partition(";")[0] for reason in reasons if reason]
    assert told[0] == "rates are measured: 2 of 2 members on 1 GPU"
    assert "rates are measured: 2 of 2 members on 2 GPUs" in told
    shown = system.command("fleet", "plan", fleet.id)
    assert "by makespan" in shown.stdout, shown.stderr
    assert system.command("cancel", fleet.id).returncode == 0
    wait_until(lambda: set(fleet.states().values()) == {"CANCELLED"}, SECONDS, "the end of the fleet")


def test_a_member_that_fails_leaves_the_others_alone(system: Deployment, feeds: FeedTrainings) -> None:
    other = "tests.system.fleet.pictures:missing"
    networks = [Network("good", 4, 1, 1, (100.0, 150.0)), Network("bad", 4, 1, 0, (90.0, 140.0))]
    fleet = submit(system, feeds, networks, planner="list", max_nodes=1, feed=other)
    wait_until(lambda: fleet.ended("good"), SECONDS, "the end of the other member")
    check_exact(fleet, {"good": 1})
    wait_until(lambda: fleet.states()["bad"] == "FAILED", SECONDS, "the failure")
    told = "".join(path.read_text() for name in fleet.jobs for path in (fleet.folder(name) / "logs").glob("*.log"))
    assert "feed: expected a function missing in tests.system.fleet.pictures" in told
    assert {line["received"] for line in fleet.lines("good")} == {0}
