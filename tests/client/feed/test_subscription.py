"""A training's side of the connection to a feed."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest

from malletrain.client.feeding.codec import encode
from malletrain.client.feeding.messages import (
    MAX_PACKET_BYTES,
    Costs,
    Message,
    Ready,
    ReadyPlace,
    Request,
    Welcome,
    pack,
    unpack,
)
from malletrain.client.feeding.ring_memory import FeedRingWriter
from malletrain.client.feeding.source import FeedSource
from malletrain.client.feeding.subscription import FeedSubscription, SilentFeedError
from malletrain.client.sampling import NumberedBatch
from malletrain.client.warn_once import WarnOnce

SOURCE = FeedSource("m:f", {}, "", 0, "python", "/", [], seed=0, size=8, kind="builtins.list")


@dataclass
class Connecting:
    """What a training finds: connections, whose other ends are kept, or nothing."""

    possible: bool = True
    ends: list[socket.socket] = field(default_factory=list)
    own: list[socket.socket] = field(default_factory=list)

    def connect(self) -> socket.socket | None:
        if not self.possible:
            raise PermissionError("the folder is not private")
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setblocking(False)
        other.setblocking(False)
        self.own.append(own)
        self.ends.append(other)
        return own


def test_a_training_that_leaves_is_gone_although_others_hold_its_connection_open() -> None:
    connecting = Connecting()
    subscription = FeedSubscription(connecting, SOURCE, 2.0, WarnOnce())
    subscription.poll(0)
    with connecting.own[0].dup(), connecting.ends[0] as end:  # as in a process that was forked from it
        assert end.recv(MAX_PACKET_BYTES)  # its greeting
        subscription.leave()
        assert end.recv(MAX_PACKET_BYTES) == b""


def test_a_forked_process_that_leaves_does_not_end_the_connection_of_its_training() -> None:
    connecting = Connecting()
    subscription = FeedSubscription(connecting, SOURCE, 2.0, WarnOnce())
    subscription.poll(0)
    child = os.fork()
    if child == 0:
        subscription.leave()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with connecting.ends[0] as end:
        assert end.recv(MAX_PACKET_BYTES)
        with pytest.raises(BlockingIOError):
            end.recv(MAX_PACKET_BYTES)
        subscription.leave()


def test_nobody_waits_for_a_feed_that_is_not_looked_for_again_in_time() -> None:
    now, slept = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, slept
        now, slept = now + seconds, slept + seconds

    subscription = FeedSubscription(Connecting(possible=False), SOURCE, 2.0, WarnOnce(), clock=lambda: now)
    with patch("malletrain.client.feeding.subscription.time.sleep", sleep):
        for _ in range(6):
            subscription.poll(0)
            now += 100.0
        subscription.poll(0)
        # The pause has grown beyond what it would wait.
        subscription.wait_open(0)
        assert slept == 0.0


class Answering(threading.Thread):
    """A feed's side that answers requests of a training that waits, one message for each."""

    def __init__(self, end: socket.socket, answers: list[Message]) -> None:
        super().__init__(daemon=True)
        self._end, self._answers = end, answers
        end.setblocking(True)

    def run(self) -> None:
        while self._answers and (packet := self._end.recv(MAX_PACKET_BYTES)):
            if isinstance(request := unpack(packet), Request) and request.waiting:
                self._end.send(pack(self._answers.pop(0)))


def subscribed(answers: list[Message], patience: float = 30.0) -> FeedSubscription:
    """A training whose feed has sample 0 in its ring."""
    connecting = Connecting()
    subscription = FeedSubscription(connecting, SOURCE, patience, WarnOnce())
    subscription.poll(0)
    ring = FeedRingWriter(4096)
    ring.write(0, 0, 5, CONTENT)
    socket.send_fds(connecting.ends[0], [pack(Welcome(4096))], [ring.descriptor])
    assert subscription.poll(0)
    Answering(connecting.ends[0], answers).start()
    return subscription


CONTENT = encode(7)
SAMPLE = Ready([ReadyPlace(0, 5, 0, len(CONTENT))])
BATCH = NumberedBatch(0, [5])


def test_what_preparing_costs_is_told_between_samples() -> None:
    subscription = subscribed([Costs(4_000_000, 2), Costs(5_000_000, 2), SAMPLE])
    (offered,) = subscription.take([BATCH])
    assert (offered.sample, offered.by_feed) == (7, True)
    assert subscription.costs == Costs(5_000_000, 2)


def test_a_feed_that_tells_nothing_else_is_silent() -> None:
    subscription = subscribed([Costs(4_000_000, 2)], patience=0.05)
    with pytest.raises(SilentFeedError, match=r"it has sent no sample for 0\.05 s"):
        subscription.take([BATCH])
    with pytest.raises(SilentFeedError, match="it has sent nothing that was asked for"):
        subscribed([Ready([])]).take([BATCH])


def test_costs_that_are_nearly_the_same_are_told_once() -> None:
    assert Costs(1_040_000, 2).is_like(Costs(1_000_000, 2))
    assert not Costs(1_060_000, 2).is_like(Costs(1_000_000, 2))
    assert not Costs(1_000_000, 1).is_like(Costs(1_000_000, 2))
    assert not Costs(1_000_000, 2, 1).is_like(Costs(1_000_000, 2, 2))
    assert Costs(1_000_000, 2, 1, ((1, 100.0),)).is_like(Costs(1_000_000, 2, 1, ((1, 104.0),)))
    for rates in ((), ((1, 110.0),), ((1, 100.0), (2, 200.0)), ((2, 100.0),)):
        assert not Costs(1_000_000, 2, 1, ((1, 100.0),)).is_like(Costs(1_000_000, 2, 1, rates))
