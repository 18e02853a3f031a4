"""Follows which nodes are called slow: asks Monitor now and then, and tells the operator what has changed."""

from __future__ import annotations

import asyncio

import grpc.aio
import structlog

from malletrain.runtime.kernel.peers import Peers
from malletrain.scavenger.machine.slow_nodes import CalledSlow, NodeSlowness, judged
from malletrain.v1 import monitor_pb2

_ASK_SECONDS = 15.0
_ANSWER_SECONDS = 5.0


class SlowNodeWatch:
    """The newest answer of Monitor; while it does not answer, the one before counts."""

    def __init__(self, peers: Peers | None, ask_seconds: float = _ASK_SECONDS) -> None:
        """Know of no slow node.

        Args:
            peers: Where Monitor is; None: nobody is asked. Closed by `close`.
            ask_seconds: Time between two questions.
        """
        self._peers = peers
        self._ask_seconds = ask_seconds
        self._log = structlog.get_logger(__name__)
        self.nodes: tuple[NodeSlowness, ...] = ()

    @property
    def counting(self) -> list[str]:
        """Names of the nodes that count as slow."""
        return [node.name for node in self.nodes if node.counts]

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            if self._peers is not None:
                await self._ask(self._peers)
            await asyncio.sleep(self._ask_seconds)

    async def _ask(self, peers: Peers) -> None:
        try:
            answer = await peers.monitor.ListSlowNodes(monitor_pb2.ListSlowNodesRequest(), timeout=_ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.debug("no slow nodes are known", code=error.code().name)
            return
        self.take(judged(CalledSlow(node.name, node.share, node.owners, node.job_id) for node in answer.nodes))

    def take(self, nodes: tuple[NodeSlowness, ...]) -> None:
        """Take over which nodes are slow; what changes is logged."""
        before, now = ({node.name: node for node in known} for known in (self.nodes, nodes))
        self.nodes = nodes
        for name, node in now.items():
            if name not in before or before[name].counts != node.counts:
                said = "a node counts as slow" if node.counts else "a node is called slow"
                self._log.warning(said, node=name, reason=node.reason)
        for name in before.keys() - now.keys():
            self._log.info("a node is no longer called slow", node=name)

    async def close(self) -> None:
        """Disconnect from Monitor."""
        if self._peers is not None:
            await self._peers.close()
