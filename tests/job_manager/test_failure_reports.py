"""The Scavenger is told of nodes on which work keeps failing, once of each failure, by real gRPC."""

from __future__ import annotations

from typing import Any

import grpc.aio

from malletrain.job_manager.peers import ManagerPeers
from malletrain.job_manager.stimuli import SupervisorSeen
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.v1 import scavenger_pb2, scavenger_pb2_grpc
from tests.support.access import CREDENTIAL


class Listener(scavenger_pb2_grpc.ScavengerServiceServicer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def ReportNodeFailures(
        self, request: scavenger_pb2.ReportNodeFailuresRequest, context: Any
    ) -> scavenger_pb2.ReportNodeFailuresResponse:
        self.told += [failure.node for failure in request.failures]
        return scavenger_pb2.ReportNodeFailuresResponse()


def seen(**failures: int) -> SupervisorSeen:
    return SupervisorSeen("j000001", 1, 1, 1, frozenset(), frozenset(), tuple(failures.items()))


def peers_at(scavenger: str) -> ManagerPeers:
    return ManagerPeers(Settings(addresses=Addresses(scavenger=scavenger)), SystemClock(), CREDENTIAL)


async def test_each_failure_of_a_node_that_stands_out_is_reported_once() -> None:
    server, listener = grpc.aio.server(), Listener()
    scavenger_pb2_grpc.add_ScavengerServiceServicer_to_server(listener, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peers = peers_at(f"127.0.0.1:{port}")
    try:
        await peers.report_failures(seen(n1=1), ("n1", "n2", "n3"), ("n1", "n2", "n3"))
        assert listener.told == []
        await peers.report_failures(seen(n1=2), ("n1", "n2", "n3"), ("n1", "n2", "n3"))
        await peers.report_failures(seen(n1=2), ("n1", "n2", "n3"), ("n1", "n2", "n3"))
        await peers.report_failures(seen(n1=3), ("n1", "n2", "n3"), ("n1", "n2", "n3"))
        assert listener.told == ["n1"] * 3
        await peers.report_failures(seen(n9=1000), ("n1", "n2", "n3"), ("n1", "n2", "n3"))
        await peers.report_failures(seen(n1=4, n2=1), ("n1", "n2", "n3"), ("n1", "n2", "n3"))
        assert listener.told == ["n1"] * 3
    finally:
        await peers.close()
        await server.stop(0)


async def test_a_scavenger_that_is_not_there_is_told_later() -> None:
    peers = peers_at("127.0.0.1:9")
    await peers.report_failures(seen(n1=2), ("n1", "n2", "n3"), ("n1", "n2", "n3"))
    await peers.close()
