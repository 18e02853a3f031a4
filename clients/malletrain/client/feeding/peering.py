"""What a group of trainings shares with the feeds of a fleet's other nodes."""

from __future__ import annotations

import selectors
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from malletrain.client.feeding.errors import FeedError, NotSharingError
from malletrain.client.feeding.peer_link import PeerIdentity, PeerLink
from malletrain.client.feeding.peer_registry import PeerAddress
from malletrain.client.feeding.peer_share import PeerPause, owner_of, team_of
from malletrain.client.feeding.schedule import Task
from malletrain.client.warn_once import WarnOnce

WaitedFor = Callable[[Mapping[int, Task]], bool]


@dataclass
class KnownPeers:
    """The feeds of other nodes, as one feed knows them."""

    identity: PeerIdentity
    addresses: Mapping[str, PeerAddress] = field(default_factory=dict)
    warnings: WarnOnce = field(default_factory=WarnOnce)


class GroupPeers:
    """The links of one group. Nothing that goes wrong here keeps a training waiting for longer than `peer_seconds`."""

    def __init__(
        self,
        known: KnownPeers | None,
        selector: selectors.BaseSelector,
        take: Callable[[Task, bytes | None], None],
    ) -> None:
        """Connect to nobody yet.

        Args:
            known: The feeds of other nodes; None: there are none.
            take: Called with a sample, and its content; None: it has to be prepared here.
        """
        self._known, self._selector, self._take = known, selector, take
        self._links: dict[str, PeerLink] = {}
        # By address, too: one that has been started anew has not failed yet.
        self._pauses: defaultdict[tuple[str, PeerAddress], PeerPause] = defaultdict(PeerPause)

    @property
    def descriptors(self) -> list[int]:
        """What processes forked from the feed must not keep open."""
        return [link.descriptor for link in self._links.values()]

    @property
    def are_open(self) -> bool:
        """Whether any other feed shares samples now."""
        return any(link.is_open for link in self._links.values())

    def ask(self, task: Task) -> bool:
        """Ask the feed that owns a sample for it; whether that is another one, and it can be asked now."""
        if self._known is None:
            return False
        own = self._known.identity.settings.name
        shared = {own: None} | {name: link for name, link in self._links.items() if link.is_open}
        link = shared[owner_of(task.number, shared)]
        if link is None or not link.share.may_ask(task.number):
            return False
        link.ask(task)
        return True

    def take_back(self, number: int) -> None:
        """Another feed asks this one for a sample: it must not ask others for that."""
        for link in self._links.values():
            if task := link.share.answer(number):
                self._take(task, None)

    def look(self, position: int, now: float, waited_for: WaitedFor, *, idle: bool) -> None:
        """Connect to feeds that are there, and give up those that hold up trainings.

        Args:
            position: What no training of the group is behind.
            now: Monotonic time in seconds.
            waited_for: Tells whether a training waits for one of some samples.
            idle: Whether nothing was to be prepared here since the last call.
        """
        if self._known is None:
            return
        for name, link in list(self._links.items()):
            if link.share.is_too_slow(now, waiting=waited_for(link.share.asked), idle=idle):
                link.error = link.error or FeedError(f"it holds up trainings for {self._known.identity.seconds:g} s")
            if link.error is not None:
                self._lose(name, now)
        self._connect(position, now)

    def tell(self, position: int, now: float, waited_for: WaitedFor) -> None:
        """Tell other feeds where the trainings are, and ask for what they own; arguments as of `look`."""
        for link in self._links.values():
            link.tell(position, now, waiting=waited_for(link.share.asked))

    def drop(self, name: str, now: float) -> None:
        """Another feed keeps trainings here waiting in another way: do without it for some time."""
        if name in self._links:
            self._lose(name, now)

    def close(self) -> None:
        """End all connections. What they were asked for is prepared here, if anybody still wants it."""
        for name in list(self._links):
            for task in self._links.pop(name).close():
                self._take(task, None)

    def _lose(self, name: str, now: float) -> None:
        assert self._known is not None
        link = self._links.pop(name)
        self._known.warnings.warn(f"{name} {type(link.error).__name__}", f"{link} is tried again later: {link.reason}")
        self._pauses[name, link.address].lost(now, refused=isinstance(link.error, NotSharingError))
        for task in link.close():
            self._take(task, None)

    def _connect(self, position: int, now: float) -> None:
        assert self._known is not None
        known = self._known
        for name in team_of(known.identity.settings.name, known.addresses):
            address = known.addresses[name]
            pause = self._pauses[name, address]
            if name in self._links or now < pause.try_at:
                continue
            take = self._noting(pause)
            try:
                self._links[name] = PeerLink(known.identity, name, address, position, now, self._selector, take)
            except OSError as error:
                known.warnings.warn("connect", f"no connection to other feeds: {error}")
                pause.lost(now)

    def _noting(self, pause: PeerPause) -> Callable[[Task, bytes | None], None]:
        """Take what a feed sends, and note that it does."""

        def take(task: Task, content: bytes | None) -> None:
            if content is not None:
                pause.used()
            self._take(task, content)

        return take
