"""Messages between a feed and its trainings: one packet each, checked when it is read. Nothing is pickled. Pure."""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from malletrain.client.feeding.errors import FeedError

VERSION = 3
MAX_PACKET_BYTES = 64 << 10
"""Bytes of the longest packet."""
MAX_INDICES = 4096
"""Most samples in one request."""
MAX_PLACES = 1024
"""Most samples in one answer."""
MAX_RATES = 7
"""Most numbers of processes of which costs tell what they prepare."""
_MAX_TEXT = 2000
_NUMBER_LIMIT = 1 << 62
_NEWS = 0.05
"""Share by which costs change before they are told again."""

_HELLO, _WELCOME, _REFUSED, _REQUEST, _READY, _UNABLE, _COSTS, _PEER_HELLO, _SAMPLE = range(1, 10)
_REQUEST_HEAD = struct.Struct("<BBxxIqq")
_READY_HEAD = struct.Struct("<BxxxI")
_PLACE = struct.Struct("<qqqq")
_UNABLE_HEAD = struct.Struct("<Bxxxxxxxq")
_COSTS_HEAD = struct.Struct("<BBxxxxxxqqq")
_RATE = struct.Struct("<qd")
_SAMPLE_HEAD = struct.Struct("<Bxxxxxxxqq")
SAMPLE_HEAD_BYTES = _SAMPLE_HEAD.size


class Hello(NamedTuple):
    """A training's first message.

    Attributes:
        key: What it wants samples of; see `source.FeedSource`.
        length: Samples in its dataset.
        kind: Type of its dataset.
        position: About where it is: the number of the next sample that it needs.
        version: Version of these messages.
    """

    key: str
    length: int
    kind: str
    position: int
    version: int = VERSION


class Welcome(NamedTuple):
    """A feed's first message. The descriptor of the ring comes with it.

    Attributes:
        memory_bytes: Size of the ring.
    """

    memory_bytes: int


class Refused(NamedTuple):
    """The feed serves this training no more.

    Attributes:
        reason: Why.
        final: Whether asking again is of no use.
        moved: Whether it is to ask again at once: others have come near, with which it goes on.
    """

    reason: str
    final: bool
    moved: bool = False


class Request(NamedTuple):
    """A training says where it is, and asks for samples.

    Attributes:
        position: It will never ask for a sample with a smaller number.
        first: Number of the first sample that it asks for; those of the others follow.
        indices: Their dataset indices.
        waiting: Whether the training waits.
    """

    position: int
    first: int
    indices: Sequence[int]
    waiting: bool


class ReadyPlace(NamedTuple):
    """A sample in the ring: its number, its dataset index, where it begins, and its bytes."""

    number: int
    dataset_index: int
    offset: int
    length: int


class Ready(NamedTuple):
    """Samples lie in the ring."""

    places: list[ReadyPlace]


class Unable(NamedTuple):
    """The training has to prepare a sample itself."""

    number: int
    reason: str


class Costs(NamedTuple):
    """What preparing costs in the feed.

    Attributes:
        cpu_nanoseconds: CPU time of a sample.
        processes: How many processes prepare samples for this training, as many as there are cores for; where the feed
            chooses their number, how many may.
        running: How many do now.
        rates: Samples/s that were prepared, by numbers of processes, which rise.
    """

    cpu_nanoseconds: int
    processes: int
    running: int = 0
    rates: tuple[tuple[int, float], ...] = ()

    def is_like(self, other: Costs) -> bool:
        """Whether they are so near to each other that only one need be told."""
        near = abs(self.cpu_nanoseconds - other.cpu_nanoseconds) <= _NEWS * other.cpu_nanoseconds
        rates, others = dict(self.rates), dict(other.rates)
        alike = rates.keys() == others.keys() and all(abs(r - others[n]) <= _NEWS * others[n] for n, r in rates.items())
        return near and alike and (self.processes, self.running) == (other.processes, other.running)


class PeerHello(NamedTuple):
    """The first message of the feed of another node. All further ones are those of a training.

    Attributes:
        hello: As a training's.
        sender: Name of that feed.
        receiver: Name of the feed that it wants to reach.
    """

    hello: Hello
    sender: str
    receiver: str


Message = Hello | Welcome | Refused | Request | Ready | Unable | Costs | PeerHello


class PeerSample(NamedTuple):
    """A sample for the feed of another node. It may be longer than a packet.

    Attributes:
        number: Its number in the training.
        dataset_index: Its dataset index.
        content: The sample as bytes; see `codec`.
    """

    number: int
    dataset_index: int
    content: bytes


def pack(message: Message) -> bytes:
    """A message as a packet."""
    match message:
        case Hello():
            return _text(_HELLO, message._asdict())
        case Welcome():
            return _text(_WELCOME, message._asdict())
        case Refused(reason, final, moved):
            return _text(_REFUSED, {"reason": reason[:_MAX_TEXT], "final": final, "moved": moved})
        case Request(position, first, indices, waiting):
            head = _REQUEST_HEAD.pack(_REQUEST, waiting, len(indices), position, first)
            return head + array("q", indices).tobytes()
        case Ready(places):
            return _READY_HEAD.pack(_READY, len(places)) + b"".join(_PLACE.pack(*place) for place in places)
        case Unable(number, reason):
            return _UNABLE_HEAD.pack(_UNABLE, number) + reason[: _MAX_TEXT // 4].encode(errors="replace")
        case Costs():
            head = _COSTS_HEAD.pack(_COSTS, len(message.rates), *message[:3])
            return head + b"".join(_RATE.pack(*rate) for rate in message.rates)
        case PeerHello(hello, sender, receiver):
            return _text(_PEER_HELLO, {"hello": hello._asdict(), "sender": sender, "receiver": receiver})


def unpack(packet: bytes) -> Message:
    """Read a packet.

    Raises:
        FeedError: it is none of these messages.
    """
    readers: dict[int, Callable[[bytes], Message]] = {
        _HELLO: lambda packet: _hello_of(_read_text(packet)),
        _WELCOME: _unpack_welcome,
        _REFUSED: _unpack_refused,
        _REQUEST: _unpack_request,
        _READY: _unpack_ready,
        _UNABLE: _unpack_unable,
        _COSTS: _unpack_costs,
        _PEER_HELLO: _unpack_peer_hello,
    }
    reader = readers.get(packet[0]) if packet else None
    if reader is None or len(packet) > MAX_PACKET_BYTES:
        raise FeedError(f"message: expected a known type, got {packet[:1]!r}")
    try:
        return reader(packet)
    except (struct.error, ValueError, RecursionError, TypeError, KeyError) as error:
        raise FeedError(f"message: expected one of type {packet[0]}, got {packet[:60]!r}") from error


def sample_head(number: int, dataset_index: int) -> bytes:
    """What stands before the content of a `PeerSample`."""
    return _SAMPLE_HEAD.pack(_SAMPLE, number, dataset_index)


def unpack_from_peer(frame: bytes) -> Message | PeerSample:
    """Read what the feed of another node has sent: a message, or a sample.

    Raises:
        FeedError: it is neither.
    """
    if frame[:1] != bytes([_SAMPLE]):
        return unpack(frame)
    try:
        _, number, index = _SAMPLE_HEAD.unpack_from(frame)
        return PeerSample(_number(number), _number(index), frame[SAMPLE_HEAD_BYTES:])
    except (struct.error, ValueError) as error:
        raise FeedError(f"message: expected a sample, got {frame[:60]!r}") from error


def rates_of(measured: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    """Rates as `Costs` tells them: those of 1, 2, 4, ... processes, and of the largest other number.

    Args:
        measured: Samples/s by number of processes.
    """
    powers = {number for number in measured if number & (number - 1) == 0}
    told = powers | ({max(measured)} if measured else set())
    return tuple(sorted((number, measured[number]) for number in told))[-MAX_RATES:]


def requests(position: int, runs: Iterable[tuple[int, Sequence[int]]], *, waiting: bool) -> Iterator[Request]:
    """Requests for runs of samples (number of the first, dataset indices), none too long; one at least."""
    sent = False
    for first, indices in runs:
        for start in range(0, len(indices), MAX_INDICES):
            sent = True
            yield Request(position, first + start, indices[start : start + MAX_INDICES], waiting)
    if not sent:
        yield Request(position, position, (), waiting)


def _text(kind: int, content: dict[str, Any]) -> bytes:
    return bytes([kind]) + json.dumps(content).encode()


def _read_text(packet: bytes) -> dict[str, Any]:
    content = json.loads(packet[1:])
    if not isinstance(content, dict):
        raise ValueError("expected an object")
    return content


def _unpack_peer_hello(packet: bytes) -> PeerHello:
    content = _read_text(packet)
    sender, receiver = str(content["sender"])[:_MAX_TEXT], str(content["receiver"])[:_MAX_TEXT]
    return PeerHello(_hello_of(content["hello"]), sender, receiver)


def _hello_of(content: dict[str, Any]) -> Hello:
    key, kind = str(content["key"])[:_MAX_TEXT], str(content["kind"])[:_MAX_TEXT]
    length, position, version = (_number(content[name]) for name in ("length", "position", "version"))
    return Hello(key, length, kind, position, version)


def _unpack_welcome(packet: bytes) -> Welcome:
    return Welcome(_number(_read_text(packet)["memory_bytes"]))


def _unpack_refused(packet: bytes) -> Refused:
    content = _read_text(packet)
    return Refused(str(content["reason"])[:_MAX_TEXT], content["final"] is True, content.get("moved") is True)


def _unpack_request(packet: bytes) -> Request:
    _, waiting, count, position, first = _REQUEST_HEAD.unpack_from(packet)
    indices = array("q", packet[_REQUEST_HEAD.size :])
    if count != len(indices) or count > MAX_INDICES or waiting > 1:
        raise ValueError("expected as many indices as announced")
    for value in (position, first, *indices):
        _number(value)
    return Request(position, first, indices, bool(waiting))


def _unpack_ready(packet: bytes) -> Ready:
    _, count = _READY_HEAD.unpack_from(packet)
    if count > MAX_PLACES or len(packet) != _READY_HEAD.size + count * _PLACE.size:
        raise ValueError("expected as many places as announced")
    places = _PLACE.iter_unpack(packet[_READY_HEAD.size :])
    return Ready([ReadyPlace(*(_number(value) for value in words)) for words in places])


def _unpack_unable(packet: bytes) -> Unable:
    _, number = _UNABLE_HEAD.unpack_from(packet)
    return Unable(_number(number), packet[_UNABLE_HEAD.size :][:_MAX_TEXT].decode(errors="replace"))


def _unpack_costs(packet: bytes) -> Costs:
    _, count, *words = _COSTS_HEAD.unpack_from(packet)
    nanoseconds, processes, running = (_number(word) for word in words)
    if count > MAX_RATES or len(packet) != _COSTS_HEAD.size + count * _RATE.size:
        raise ValueError("expected as many rates as announced")
    rates = tuple((_number(number), _positive(rate)) for number, rate in _RATE.iter_unpack(packet[_COSTS_HEAD.size :]))
    if any(after <= before for (before, _), (after, _) in pairwise(rates)):
        raise ValueError("expected numbers of processes that rise")
    return Costs(nanoseconds, processes, running, rates)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _NUMBER_LIMIT:
        raise ValueError(f"expected a number from 0 on, got {value!r}")
    return value


def _positive(value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"expected a finite number above 0, got {value!r}")
    return value
