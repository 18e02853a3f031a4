"""Tells the operator's receivers of nodes that are not well, without ever holding up the Scavenger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from malletrain.common.tasks import lasting
from malletrain.runtime.clock import Clock
from malletrain.runtime.notices.delivery import Deliver, receivers, send
from malletrain.scavenger.machine.quarantine import NodeFailureRecord
from malletrain.scavenger.machine.slow_nodes import NodeSlowness
from malletrain.scavenger.machine.stimuli import NoteQuarantine
from malletrain.scavenger.notifications.notices import NodeNotice, NodeNoticeKind, NodeNoticeQueue
from malletrain.scavenger.settings import NodeNotificationSettings
from malletrain.scavenger.state_file import NODE_NOTICES, ScavengerStateFile

SECTION = "scavenger.notifications"
_GATHER_SECONDS = 1.0
"""So long is waited for more: what ails many nodes at once is told at once."""


class _Receiver:
    """One receiver, and what it is still to be told."""

    def __init__(self, name: str, deliver: Deliver, queue: NodeNoticeQueue) -> None:
        self.name = name
        self.deliver = deliver
        self.queue = queue
        self.wanted = asyncio.Event()
        if len(queue):
            self.wanted.set()


class NodeNotifier:
    """Notes what is wrong with nodes, and tells each receiver by itself."""

    def __init__(self, settings: NodeNotificationSettings, state_file: ScavengerStateFile, clock: Clock) -> None:
        """Begin with what the last Scavenger could not tell.

        Args:
            settings: Whom to tell what.
            state_file: Keeps what was told, and what was not, over a restart.
            clock: Clock.

        Raises:
            InvalidInputError: a receiver can't be used.
        """
        self._settings = settings
        self._state_file = state_file
        self._clock = clock
        stored = state_file.section(NODE_NOTICES)
        self._receivers = [
            _Receiver(name, deliver, NodeNoticeQueue(settings.events, settings.repeat_seconds, _dict(stored.get(name))))
            for name, deliver in receivers(settings, SECTION).items()
        ]
        self._log = structlog.get_logger(__name__)

    def note_quarantine(self, noted: NoteQuarantine) -> None:
        """A node is left out from now on."""
        node, reason, by = noted.failure
        now = self._clock.time()
        kind = NodeNoticeKind.CHECK_FAILED if noted.is_check else NodeNoticeKind.QUARANTINED
        self._note(NodeNotice(node, kind, _reason_text(reason, by), now, now + noted.seconds))

    def note_slow(self, nodes: Sequence[NodeSlowness]) -> None:
        """These nodes are called slow."""
        for node in nodes:
            kind = NodeNoticeKind.SLOW if node.counts else NodeNoticeKind.CALLED_SLOW
            self._note(NodeNotice(node.name, kind, node.reason, self._clock.time()))

    def note_stored(self, quarantined: Mapping[str, NodeFailureRecord], is_check: Callable[[str], bool]) -> None:
        """These nodes were left out before a restart.

        Args:
            quarantined: They, by name.
            is_check: Whether it was the check that said so, by `NodeFailureRecord.by`.
        """
        for name, record in quarantined.items():
            kind = NodeNoticeKind.CHECK_FAILED if is_check(record.by) else NodeNoticeKind.QUARANTINED
            self._note(NodeNotice(name, kind, _reason_text(record.reason, record.by), self._clock.time(), record.until))

    def _note(self, notice: NodeNotice) -> None:
        for receiver in self._receivers:
            if receiver.queue.add_notice(notice):
                receiver.wanted.set()

    async def run(self) -> None:
        """Tell, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for receiver in self._receivers:
                    group.create_task(lasting(self._serve(receiver), "receiver of notices of nodes"))
                # Without a receiver, too, it lasts until it is cancelled.
                await asyncio.Event().wait()
        finally:
            if self._receivers:
                self._store()

    async def _serve(self, receiver: _Receiver) -> None:
        queue, settings = receiver.queue, self._settings
        while True:
            await receiver.wanted.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            receiver.wanted.clear()
            self._store()
            while len(queue):
                left_out = queue.left_out
                numbers, content = queue.batch()
                log = self._log.bind(receiver=receiver.name, notices=len(numbers), left_out=left_out)
                delivered = await send(content, receiver.deliver, settings, self._clock, log)
                queue.done(numbers, left_out if delivered else 0)
                self._store()

    def _store(self) -> None:
        content = {receiver.name: receiver.queue.to_json() for receiver in self._receivers}
        self._state_file.try_write(NODE_NOTICES, content)


def _reason_text(reason: str, by: str) -> str:
    return f"{reason} ({by})" if by else reason


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
