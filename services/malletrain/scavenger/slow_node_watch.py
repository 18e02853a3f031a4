"""Follows which nodes are slow: by the jobs that Monitor knows of, and by our own measure. Tells what has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio
import structlog

from malletrain.runtime.kernel.peers import Peers
from malletrain.scavenger.machine.slow_nodes import CalledSlow, NodeSlowness, NodeSpeed, NodeSpeeds, judge
from malletrain.v1 import monitor_pb2

_ASK_SECONDS = 15.0
_ANSWER_SECONDS = 5.0


class SlowNodeWatch:
    """Asks Monitor which nodes are slow. While it does not answer, its answer before counts."""

    def __init__(
        self,
        peers: Peers | None,
        speeds: NodeSpeeds | None = None,
        pool_of: Callable[[str], str | None] = lambda _: "",
        store: Callable[[Mapping[str, Any]], object] = lambda _: None,
        ask_seconds: float = _ASK_SECONDS,
        note: Callable[[Sequence[NodeSlowness]], object] = lambda _: None,
    ) -> None:
        """Nothing happens before `run`.

        Args:
            peers: Where Monitor is; None: nobody is asked. Closed by `close`.
            speeds: Measures of nodes so far; None: there are none.
            pool_of: The pool of a node; None: there is no such node any more.
            store: Stores the measures.
            ask_seconds: Time between two questions.
            note: Is told which nodes are slow, whenever that is judged.
        """
        self._peers = peers
        self._speeds = speeds or NodeSpeeds()
        self._pool_of = pool_of
        self._store = store
        self._ask_seconds = ask_seconds
        self._note = note
        self._called: tuple[CalledSlow, ...] = ()
        self._unstored = False
        self._log = structlog.get_logger(__name__)
        self.nodes: tuple[NodeSlowness, ...] = ()

    @property
    def counting(self) -> list[str]:
        """Names of the nodes that count as slow."""
        return [node.name for node in self.nodes if node.counts]

    def note_speed(self, name: str, speed: NodeSpeed) -> None:
        """An agent has told how fast its node is."""
        self._unstored |= self._speeds.take_measure(name, speed)

    async def run(self) -> None:
        """Ask and judge again and again, until cancelled."""
        while True:
            if self._peers is not None:
                await self._ask_monitor(self._peers)
            self.judge()
            await asyncio.sleep(self._ask_seconds)

    async def _ask_monitor(self, peers: Peers) -> None:
        try:
            answer = await peers.monitor.ListSlowNodes(monitor_pb2.ListSlowNodesRequest(), timeout=_ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._log.debug("no slow nodes are known", code=error.code().name)
            return
        self._called = tuple(CalledSlow(node.name, node.share, node.owners, node.job_id) for node in answer.nodes)

    def judge(self) -> None:
        """Judge what is known by now, and store measures that are new."""
        self.take_slow_nodes(judge(self._called, self._speeds.slow(self._pool_of)))
        if self._unstored:
            self._unstored = False
            self._store(self._speeds.to_json())

    def take_slow_nodes(self, nodes: tuple[NodeSlowness, ...]) -> None:
        """Take over which nodes are slow; what changes is logged."""
        before, now = ({node.name: node for node in known} for known in (self.nodes, nodes))
        self.nodes = nodes
        self._note(nodes)
        for name, node in now.items():
            if name not in before or before[name].counts != node.counts:
                event = "a node counts as slow" if node.counts else "a node is called slow"
                self._log.warning(event, node=name, reason=node.reason)
        for name in before.keys() - now.keys():
            self._log.info("a node is no longer called slow", node=name)

    async def close(self) -> None:
        """Disconnect from Monitor."""
        if self._peers is not None:
            await self._peers.close()
