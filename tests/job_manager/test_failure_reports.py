"""The Scavenger is told of nodes on which the work of several owners fails, once of each failure, by real gRPC."""

from __future__ import annotations

from dataclasses import replace

from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.peers import ManagerPeers
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from tests.support.access import CREDENTIAL
from tests.support.builders import job, job_spec
from tests.support.channels import knowing_stand_ins
from tests.support.stand_ins import StandInScavenger, serve


def training(number: int, owner: str) -> Job:
    """A job that has trained well on n2 and n3, and has n1 by now."""
    spec = job_spec(name=owner, command=(f"{owner}.sh",))
    return job(number, "n1", "n2", "n3", spec=spec, owner=owner, confirmed=("n2", "n3"), scale_since=1.0)


def peers_at(scavenger: str) -> ManagerPeers:
    return ManagerPeers(
        knowing_stand_ins(Settings(addresses=Addresses(scavenger=scavenger))), SystemClock(), CREDENTIAL
    )


async def fail(peers: ManagerPeers, found: Job, node: str) -> None:
    peers.note_trained(found)
    await peers.report_failures(found, [node], [])


async def test_each_failure_that_several_owners_have_seen_is_reported_once() -> None:
    scavenger = StandInScavenger()
    async with serve(scavenger) as address:
        peers = peers_at(address)
        for _ in range(5):
            await fail(peers, training(1, "ada"), "n1")
        assert scavenger.failures == [], "the word of one"
        await fail(peers, training(2, "bob"), "n1")
        assert scavenger.failures == [("n1", "j000001 (ada), j000002 (bob)")] * 6
        await peers.report_failures(replace(training(3, "cy"), held=()), ["n1"], [])
        assert len(scavenger.failures) == 6, "it did not have that node"
        await peers.close()


async def test_a_scavenger_that_is_not_there_is_told_later() -> None:
    peers = peers_at("127.0.0.1:9")
    await fail(peers, training(1, "ada"), "n1")
    await fail(peers, training(2, "bob"), "n1")
    await peers.close()
