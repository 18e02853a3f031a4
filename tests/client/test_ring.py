"""The ring under every interleaving of its two sides."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.reporting import make_report
from malletrain.client.ring import (
    RECORD_OFFSET,
    RECORD_SHIFT,
    SLOTS,
    Ring,
    RingReader,
    RingRecord,
    create_ring,
    open_ring,
)

CAPACITY = 4


class SharedWords:
    """Memory in which the writer's single stores happen between the reader's single loads, as a schedule says."""

    def __init__(self, stores: list[tuple[int, int]], schedule: list[int]) -> None:
        self._words = [0] * ((RECORD_OFFSET + (CAPACITY << RECORD_SHIFT)) >> 3)
        self._words[SLOTS] = CAPACITY
        self._stores = iter(stores)
        self._schedule = iter(schedule)

    def __getitem__(self, index: int) -> int:
        self.store(next(self._schedule, 0))
        return self._words[index]

    def store(self, count: int) -> bool:
        """The next stores of the writer; False when there are none left."""
        for _ in range(count):
            entry = next(self._stores, None)
            if entry is None:
                return False
            self._words[entry[0]] = entry[1]
        return True


def record_number(sequence: int, source: random.Random) -> RingRecord:
    return RingRecord(
        sequence, source.getrandbits(60), source.getrandbits(40), source.getrandbits(60), source.getrandbits(24)
    )


def stores_of(record: RingRecord) -> list[tuple[int, int]]:
    at = (RECORD_OFFSET + ((record.sequence & (CAPACITY - 1)) << RECORD_SHIFT)) >> 3
    return [(at + i, word) for i, word in enumerate((*record, sum(record)))]


def check_reading(
    records: list[RingRecord], stores: list[tuple[int, int]], schedule: list[int], pauses: list[int]
) -> None:
    shared = SharedWords(stores, schedule)
    reader = RingReader(shared)
    delivered: list[RingRecord] = []
    lost = 0
    for pause in pauses:
        shared.store(pause)
        more, missed = reader.read()
        delivered += more
        lost += missed
    while shared.store(1):
        pass
    more, missed = reader.read(final=True)
    delivered += more
    assert [record.sequence for record in delivered] == sorted({record.sequence for record in delivered})
    assert all(record == records[record.sequence - 1] for record in delivered)
    assert len(delivered) + lost + missed == len(records)


few = st.lists(st.integers(0, 40), max_size=12)
schedules = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2, 5, 7, 8, 20, 28, 35]), max_size=120)


@given(st.integers(0, 24), st.integers(0, 2**32), schedules, few)
def test_every_record_is_delivered_whole_or_counted_as_lost(
    count: int, seed: int, schedule: list[int], pauses: list[int]
) -> None:
    source = random.Random(seed)
    records = [record_number(sequence, source) for sequence in range(1, count + 1)]
    check_reading(records, [store for record in records for store in stores_of(record)], schedule, pauses)


@given(st.integers(0, 24), st.integers(0, 2**32), st.integers(1, 30), schedules, few)
def test_stores_that_become_visible_out_of_order_tear_no_record(
    count: int, seed: int, window: int, schedule: list[int], pauses: list[int]
) -> None:
    source = random.Random(seed)
    records = [record_number(sequence, source) for sequence in range(1, count + 1)]
    stores = [store for record in records for store in stores_of(record)]
    check_reading(records, list(delayed(stores, window, source)), schedule, pauses)


def delayed(stores: list[tuple[int, int]], window: int, source: random.Random) -> Iterator[tuple[int, int]]:
    """The stores as a weakly ordered machine shows them: any of the next few first, one address always in order."""
    waiting = list(stores)
    while waiting:
        chosen = source.randrange(min(window, len(waiting)))
        address = waiting[chosen][0]
        yield waiting.pop(next(i for i, store in enumerate(waiting) if store[0] == address))


class FixedStation:
    """Always the same ring."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.errors: list[str] = []

    def check(self, now_ns: int) -> tuple[Ring | None, int]:
        assert now_ns > 0
        return self.ring, 3

    def reject(self, error: Exception) -> None:
        self.errors.append(str(error))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2**40)), max_size=12))
def test_what_report_writes_is_what_the_reader_of_another_mapping_gets(turns: list[tuple[int, int]]) -> None:
    station = FixedStation(create_ring(8))
    times = iter(range(1, 1000))
    report, _ = make_report(station, lambda: next(times))
    other = open_ring(f"/dev/fd/{station.ring.fd}")
    reader = RingReader(other.words)
    written = 0
    for count, samples in turns:
        for _ in range(count):
            written += 1
            report(samples, position=written)
        records, lost = reader.read()
        assert len(records) == min(count, 8)
        assert lost == count - len(records)
        expected = range(written - len(records) + 1, written + 1)
        assert records == [RingRecord(number, number, samples, number, 3) for number in expected]
    assert station.errors == []
    other.close()


def test_a_reader_takes_no_more_than_the_limit() -> None:
    station = FixedStation(create_ring())
    report, _ = make_report(station, lambda: 1)
    for _ in range(10):
        report(1)
    reader = RingReader(station.ring.words, after=2)
    assert [record.sequence for record in reader.read(limit=5)[0]] == [3, 4, 5, 6, 7]
    assert [record.sequence for record in reader.read(limit=5)[0]] == [8, 9, 10]


def test_a_record_that_stays_torn_counts_as_lost_when_the_writer_is_gone() -> None:
    station = FixedStation(create_ring(8))
    report, _ = make_report(station, lambda: 1)
    for _ in range(5):
        report(1)
    # As if the writer had been killed while it replaced record 3 with record 11.
    station.ring.words[(RECORD_OFFSET + (3 << RECORD_SHIFT)) >> 3] = 11
    reader = RingReader(station.ring.words)
    assert [record.sequence for record in reader.read()[0]] == [1, 2]
    assert reader.read() == ([], 0)
    records, lost = reader.read(final=True)
    assert ([record.sequence for record in records], lost) == ([4, 5], 1)


def test_other_files_and_capacities_are_refused(tmp_path: Path) -> None:
    short, other = tmp_path / "short", tmp_path / "other"
    short.write_bytes(b"x")
    other.write_bytes(b"x" * 100_000)
    later = tmp_path / "later"
    later.write_bytes(0x4D616C6C65743032.to_bytes(8, sys.byteorder) * 10_000)
    for path, got in ((short, "too short"), (other, "another file"), (later, "one of another layout")):
        with pytest.raises(ValueError, match=f"expected a ring, got .*{got}"):
            open_ring(str(path))
    with pytest.raises(ValueError, match="power of two"):
        create_ring(6)
