"""Real trainings on two and three virtual nodes share what is prepared; faults of feeds, and strangers."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch", reason="needs torch")

from malletrain.client.feeding.messages import (
    Hello,
    PeerHello,
    Refused,
    Request,
    Unable,
    Welcome,
    pack,
    sample_head,
    unpack_from_peer,
)
from malletrain.client.feeding.peer_stream import PeerStream, tls_context
from malletrain.common.job_folder import FEED_CERTIFICATE_FILE
from malletrain.tls.names import feed_name
from tests.client.feed.fleets import FLEET, NodesOfFleet, certificate_for
from tests.client.feed.lying_feed import lying_feed
from tests.client.feed.running import ENDLESS, PATIENCE, FeedTrainings
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]
LARGE = 1_000_000
"""Samples of a dataset that no test reads twice: so each that is prepared twice can be seen."""
LIMITS = {"samples": ENDLESS, "linger_seconds": 0.5}
SETTINGS = {"size": LARGE, "until": LARGE, "step": 0.01, "limits": LIMITS}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodesOfFleet]:
    running = FeedTrainings(tmp_path)
    yield NodesOfFleet(running)
    running.close()


def test_two_nodes_prepare_each_sample_once(nodes: NodesOfFleet) -> None:
    trainings = nodes.trainings
    for node in ("n1", "n2"):
        nodes.start(f"four-{node}", node, **SETTINGS)
    nodes.start("seven-n2", "n2", **SETTINGS, batch=7)
    nodes.wait_shared("four-n1", "four-n2", "seven-n2")
    trainings.stop(*trainings.processes)
    for name in trainings.processes:
        assert trainings.check_exact(name)[-1]["prepared"] == 0, trainings.log(name)
    # Whoever has prepared a sample, it is the same: noise is part of the loss.
    count = min(len(trainings.lines(name)) for name in ("four-n1", "four-n2"))
    losses = [[line["loss"] for line in trainings.lines(name)[:count]] for name in ("four-n1", "four-n2")]
    trainings.processes.clear()
    (trainings.folder / "stop").unlink()
    trainings.start("alone", size=LARGE, until=4 * count, feed="", workers=0)
    trainings.wait("alone")
    assert losses[0] == losses[1] == [line["loss"] for line in trainings.lines("alone")]


def test_three_nodes_and_one_of_them_ends(nodes: NodesOfFleet) -> None:
    trainings = nodes.trainings
    for node in ("n1", "n2", "n3"):
        nodes.start(node, node, **SETTINGS)
    nodes.wait_shared("n1", "n2", "n3", owners=3)
    feed = nodes.feed_of("n3")
    feed.kill()
    trainings.processes["n3"].kill()
    nodes.wait_shared("n1", "n2")
    trainings.stop("n1", "n2")
    for name in ("n1", "n2"):
        assert trainings.check_exact(name)[-1]["prepared"] == 0, trainings.log(name)


def test_a_feed_is_killed_and_another_one_takes_its_place(nodes: NodesOfFleet) -> None:
    trainings = nodes.trainings
    for node in ("n1", "n2"):
        nodes.start(node, node, **SETTINGS)
    nodes.wait_shared("n1", "n2")
    feed = nodes.feed_of("n1")
    feed.kill()
    psutil.wait_procs([feed], PATIENCE)
    nodes.wait_shared("n1", "n2")
    assert nodes.feed_of("n1").pid != feed.pid
    trainings.stop("n1", "n2")
    trainings.check_exact("n1")
    assert trainings.check_exact("n2")[-1]["prepared"] == 0, trainings.log("n2")


def test_a_feed_that_stands_still_keeps_no_other_node_waiting(nodes: NodesOfFleet) -> None:
    trainings = nodes.trainings
    for node in ("n1", "n2"):
        nodes.start(node, node, **SETTINGS)
    nodes.wait_shared("n1", "n2")
    feed = nodes.feed_of("n1")
    feed.suspend()
    try:
        # Its own feed prepares them, so this training never does.
        trainings.wait_received("n2", more=400)
    finally:
        feed.resume()
    assert "holds up trainings" in nodes.log()
    nodes.wait_shared("n1", "n2")
    trainings.stop("n1", "n2")
    trainings.check_exact("n1")
    assert trainings.check_exact("n2")[-1]["prepared"] == 0, trainings.log("n2")


def test_nodes_at_other_positions_prepare_their_own_samples(nodes: NodesOfFleet) -> None:
    trainings, far = nodes.trainings, LARGE // 2
    limits = {"samples": 512, "linger_seconds": 0.5}
    nodes.start("n1", "n1", **SETTINGS | {"limits": limits})
    nodes.start("n2", "n2", **SETTINGS | {"limits": limits}, start=far)
    trainings.wait_received("n1", "n2", more=400)
    trainings.stop("n1", "n2")
    for name in ("n1", "n2"):
        assert trainings.check_exact(name)[-1]["prepared"] == 0
    assert set(trainings.prepared().values()) == {1}
    assert "expected one where trainings of this node are" in nodes.log()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda asked: sample_head(asked.first, asked.indices[0]) + b"no sample", "sample: expected a header"),
        (lambda asked: sample_head(asked.first, asked.indices[0] + 1) + b"another", "expected dataset index"),
        (lambda _: b"\x63nothing", "expected a known type"),
        (lambda asked: pack(Unable(asked.first, "no")), "holds up trainings"),
    ],
    ids=["no sample", "another sample", "no message", "one answer of many"],
)
def test_what_another_feed_sends_is_checked(nodes: NodesOfFleet, answer: Callable[[Request], bytes], told: str) -> None:
    trainings = nodes.trainings
    nodes.start("one", "n1", **SETTINGS)
    trainings.wait_received("one")
    key, _, _ = next(nodes.registry.iterdir()).name.split(".")
    certificate = trainings.folder / f"state-{FLEET}" / FEED_CERTIFICATE_FILE
    with lying_feed(nodes.registry, key, certificate, FLEET, answer) as asked:
        wait_until(lambda: asked, PATIENCE, "a request")
        trainings.wait_received("one", more=400)
    trainings.stop("one")
    lines = trainings.check_exact("one")
    assert lines[-1]["prepared"] == 0, trainings.log("one")
    assert told in nodes.log()
    trainings.processes.clear()
    (trainings.folder / "stop").unlink()
    trainings.start("alone", size=LARGE, until=4 * len(lines), feed="", workers=0)
    trainings.wait("alone")
    assert [line["loss"] for line in lines] == [line["loss"] for line in trainings.lines("alone")]


def test_groups_that_come_near_each_other_become_one(nodes: NodesOfFleet) -> None:
    trainings = nodes.trainings
    settings = SETTINGS | {"limits": {"samples": 192, "linger_seconds": 0.5}}
    trainings.start("ahead", **settings | {"step": 0.06}, start=320)
    trainings.wait_received("ahead")
    trainings.start("behind", **settings | {"step": 0.035})
    trainings.wait_received("behind")
    apart = len(trainings.wait_feed().children())
    nodes.wait_shared("ahead", "behind", owners=1)
    wait_until(lambda: len(trainings.wait_feed().children()) < apart, PATIENCE, "the end of a group")
    trainings.stop("ahead", "behind")
    for name in ("ahead", "behind"):
        assert trainings.check_exact(name)[-1]["prepared"] == 0, trainings.log(name)


def test_strangers_get_nothing_and_disturb_nobody(nodes: NodesOfFleet, tmp_path: Path) -> None:
    trainings = nodes.trainings
    for node in ("n1", "n2"):
        nodes.start(node, node, **SETTINGS)
    nodes.wait_shared("n1", "n2")
    registered = next(nodes.registry.iterdir())
    key, name, _ = registered.name.split(".")
    address = json.loads(registered.read_text())
    assert address["host"] == "127.0.0.1"
    kind = "tests.client.feed.feed_data.NotedDataset"
    hello = Hello(key, LARGE, kind, trainings.lines("n1")[-1]["first"])
    greeting = pack(PeerHello(hello, "0" * 16, name))

    def answers(certificate: Path | None, *frames: bytes, fleet: str = FLEET) -> list[object]:
        """What comes back until the feed ends the connection, or has welcomed."""
        connection = socket.create_connection((address["host"], address["port"]), PATIENCE)
        if certificate is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            stream = context.wrap_socket(connection)
            stream.sendall(len(greeting).to_bytes(4, "little") + greeting)
            return [unpack_from_peer(frame) for frame in iter(lambda: stream.recv(4096), b"")]
        other = PeerStream(
            connection, tls_context(certificate, server_side=False), feed_name(fleet), 1 << 20, server_side=False
        )
        other.socket.settimeout(PATIENCE)
        for frame in frames:
            other.send(frame)
        found: list[object] = []
        try:
            for frame in other.step():
                found.append(unpack_from_peer(frame))
                if isinstance(found[-1], Welcome):
                    break
        except EOFError:
            pass
        finally:
            other.close()
        return found

    good = tmp_path / f"state-{FLEET}" / FEED_CERTIFICATE_FILE
    assert answers(good, greeting) == [Welcome(0)]
    with pytest.raises(OSError, match=r"certificate required|reset|EOF"):
        answers(None)
    with pytest.raises(OSError, match=r"unknown ca|reset|EOF|certificate verify failed"):
        answers(certificate_for(tmp_path, installation="elsewhere"), greeting)
    with pytest.raises(OSError, match=r"Hostname mismatch|reset|EOF|certificate verify failed"):
        answers(certificate_for(tmp_path, "f000002"), greeting, fleet="f000002")
    # One of another fleet who takes this one's name is not listened to: with a Welcome there is no error.
    heard: list[object] = []
    with contextlib.suppress(OSError):
        heard = answers(certificate_for(tmp_path, "f000002"), greeting)
    assert heard == []
    for frame in (b"\x63nothing", pack(Welcome(5))):
        assert [type(each) for each in answers(good, frame)] == [Refused]
    assert all(isinstance(each, Welcome | Refused) for each in answers(good, greeting, b"\x04" + bytes(7)))
    elsewhere = pack(PeerHello(hello, "0" * 16, "1" * 16))
    assert any(isinstance(each, Refused) and "receiver" in each.reason for each in answers(good, elsewhere))
    with socket.create_connection((address["host"], address["port"]), PATIENCE) as connection:
        connection.sendall(bytes(100_000))
    nodes.wait_shared("n1", "n2")
    trainings.stop("n1", "n2")
    for name in ("n1", "n2"):
        assert trainings.check_exact(name)[-1]["prepared"] == 0, trainings.log(name)
