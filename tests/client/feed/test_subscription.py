"""A training's side of the connection to a feed."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest

from malletrain.client.feeding.messages import LONGEST
from malletrain.client.feeding.source import FeedSource
from malletrain.client.feeding.subscription import FeedSubscription
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
        assert end.recv(LONGEST)  # its greeting
        subscription.leave()
        assert end.recv(LONGEST) == b""


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
        assert end.recv(LONGEST)
        with pytest.raises(BlockingIOError):
            end.recv(LONGEST)
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
