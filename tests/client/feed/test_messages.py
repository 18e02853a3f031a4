from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.messages import (
    MAX_INDICES,
    MAX_PACKET_BYTES,
    MAX_PLACES,
    MAX_RATES,
    Costs,
    Hello,
    Message,
    PeerHello,
    PeerSample,
    Ready,
    ReadyPlace,
    Refused,
    Request,
    Unable,
    Welcome,
    pack,
    rates_of,
    requests,
    sample_head,
    unpack,
    unpack_from_peer,
)

numbers = st.integers(0, (1 << 62) - 1)
hellos = st.builds(Hello, st.text(max_size=40), numbers, st.text(max_size=40), numbers, numbers)
rates = st.dictionaries(numbers, st.floats(0, 1e9, exclude_min=True), max_size=MAX_RATES).map(
    lambda found: tuple(sorted(found.items()))
)
messages = (
    hellos
    | st.builds(PeerHello, hellos, st.text(max_size=40), st.text(max_size=40))
    | st.builds(Welcome, numbers)
    | st.builds(Refused, st.text(max_size=100), st.booleans())
    | st.builds(Request, numbers, numbers, st.lists(numbers, max_size=20), st.booleans())
    | st.builds(Ready, st.lists(st.builds(ReadyPlace, numbers, numbers, numbers, numbers), max_size=20))
    | st.builds(Unable, numbers, st.text(max_size=100))
    | st.builds(Costs, numbers, numbers, numbers, rates)
)


def plain(message: Message) -> Message:
    return message._replace(indices=list(message.indices)) if isinstance(message, Request) else message


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert plain(unpack(pack(message))) == message


@given(st.binary(max_size=200) | st.builds(lambda kind, rest: bytes([kind]) + rest, st.integers(0, 9), st.binary()))
def test_anything_else_is_a_message_or_refused(packet: bytes) -> None:
    with suppress(FeedError):
        unpack(packet)


@given(message=messages, at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_a_damaged_message_is_one_or_none(message: Message, at: int, value: int) -> None:
    packet = bytearray(pack(message))
    packet[at % len(packet)] = value
    with suppress(FeedError):
        unpack(bytes(packet))


def test_the_longest_messages_fit_into_a_packet() -> None:
    (longest,) = requests(0, [(0, range(MAX_INDICES))], waiting=True)
    assert len(pack(longest)) < MAX_PACKET_BYTES
    assert len(pack(Ready([ReadyPlace(1, 2, 3, 4)] * MAX_PLACES))) < MAX_PACKET_BYTES
    assert len(pack(Refused("ä" * 100_000, False))) < MAX_PACKET_BYTES
    assert len(pack(Unable(1, "ä" * 100_000))) < MAX_PACKET_BYTES


def test_long_requests_are_divided_and_empty_ones_are_sent() -> None:
    divided = list(requests(5, [(10, range(MAX_INDICES + 3))], waiting=False))
    assert [(each.first, len(each.indices)) for each in divided] == [(10, MAX_INDICES), (10 + MAX_INDICES, 3)]
    assert list(requests(5, [], waiting=True)) == [Request(5, 5, (), True)]


@pytest.mark.parametrize(
    "told", [((1, 0.0),), ((1, float("nan")),), ((-1, 5.0),), ((2, 5.0), (1, 5.0)), tuple((n, 1.0) for n in range(8))]
)
def test_rates_that_make_no_sense_are_refused(told: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(FeedError, match="message: expected"):
        unpack(pack(Costs(1, 2, 2, told)))


def test_rates_are_told_of_numbers_that_double_and_of_the_largest() -> None:
    measured = {3: 30.0, 1: 10.0, 2: 20.0, 6: 50.0, 5: 45.0}
    assert rates_of(measured) == ((1, 10.0), (2, 20.0), (6, 50.0))
    assert rates_of({}) == ()
    most = rates_of(dict.fromkeys(range(1, 32), 1.0))
    assert [number for number, _ in most] == [1, 2, 4, 8, 16, 31]


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(FeedError, match="message: expected"):
        unpack(pack(Request(-1, 0, [], False)))
    with pytest.raises(FeedError, match="message: expected"):
        unpack(pack(Request(0, 0, [1 << 62], False)))


@given(numbers, numbers, st.binary(max_size=200))
def test_a_sample_for_another_node_is_read_as_it_was_sent(number: int, index: int, content: bytes) -> None:
    frame = sample_head(number, index) + content
    assert unpack_from_peer(frame) == PeerSample(number, index, content)
    with pytest.raises(FeedError):
        unpack(frame)  # no message for a training


@given(st.binary(max_size=60))
def test_another_feed_may_send_anything(frame: bytes) -> None:
    for content in (frame, b"\x08" + frame, b"\x09" + frame):
        with suppress(FeedError):
            unpack_from_peer(content)


@given(messages)
def test_messages_of_other_feeds_are_those_of_trainings(message: Message) -> None:
    assert plain(unpack_from_peer(pack(message))) == plain(message)  # type: ignore[arg-type]
