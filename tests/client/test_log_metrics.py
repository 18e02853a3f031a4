"""What a script logs of its training: what of it is in the ring, what is delivered, and what never stops the script."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.client.metric_log import MetricLog
from malletrain.client.monitor_stream import MetricOutbox
from malletrain.client.ring import METRIC_SLOTS, METRICS_TAKEN, MetricReader, Ring, RingMetric, create_ring, put_metric
from malletrain.client.warn_once import WarnOnce
from tests.client.conftest import StartTrainer
from tests.client.peers import RecordingMonitor
from tests.support.waiting import wait_until


class Desk:
    """A process that logs, on a clock that stands still."""

    def __init__(self, ring: Ring | None = None) -> None:
        self.ring = ring or create_ring(8)
        self.log = MetricLog(lambda: self.ring, lambda: 5, WarnOnce())
        self.reader = MetricReader(self.ring)

    def read(self) -> list[tuple[str, float, int]]:
        return [(metric.name, metric.value, metric.step) for metric in self.reader.read()]


class Breaks:
    """No number."""

    def __float__(self) -> float:
        raise RuntimeError("on purpose")

    def __repr__(self) -> str:
        raise RuntimeError("on purpose, too")


def test_values_are_in_the_ring_in_order_each_once() -> None:
    desk = Desk()
    desk.log.log({"loss": 0.5, "größe": 3}, step=7)
    desk.log.log({"loss": 0.25})
    assert desk.reader.read() == [
        RingMetric(1, 5, 7, 0.5, "loss"),
        RingMetric(2, 5, 7, 3.0, "größe"),
        RingMetric(3, 5, -1, 0.25, "loss"),
    ]
    assert desk.read() == []


@pytest.mark.parametrize(
    ("metrics", "step", "said"),
    [
        ({"loss": math.nan}, None, "'loss' is left out: expected a finite number, got nan"),
        ({"loss": -math.inf}, None, "got -inf"),
        ({"loss": "much"}, None, "'loss' is left out: ValueError"),
        ({"loss": None}, None, "'loss' is left out: TypeError"),
        ({"loss": Breaks()}, None, "on purpose"),
        ({"": 1.0}, None, "expected a name of 1 to 64 bytes, all printable, got ''"),
        ({"ä" * 33: 1.0}, None, "expected a name of 1 to 64 bytes"),
        ({"a\nb": 1.0}, None, "expected a name of 1 to 64 bytes"),
        ({5: 1.0}, None, "expected a name of 1 to 64 bytes"),
        ({Breaks(): 1.0}, None, "on purpose"),
        ([1.0], None, "AttributeError"),
        ({"loss": 1.0}, -1, "step: expected 0 to 1152921504606846976, got -1"),
        ({"loss": 1.0}, 1.5, "TypeError"),
    ],
)
def test_what_can_not_be_logged_is_said_once_and_stops_nothing(
    metrics: Any, step: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk()
    for _ in range(3):
        desk.log.log(metrics, step)
    desk.log.log({"fine": 2.0}, 1)
    assert desk.read() == [("fine", 2.0, 1)]
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_others_of_a_call_with_a_bad_value_count(capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk()
    desk.log.log({"a": math.nan, "b": 1.0, "c": "x", "d": 2.0})  # type: ignore[dict-item]
    assert [name for name, _, _ in desk.read()] == ["b", "d"]
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_process_logs_so_many_metrics_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk()
    for _ in range(2):
        desk.log.log({f"m{number}": number for number in range(40)})
    assert {name for name, _, _ in desk.read()} == {f"m{number}" for number in range(32)}
    assert "at most 32 metrics: 'm32'" in capsys.readouterr().err


@given(st.lists(st.integers(0, 2 * METRIC_SLOTS), max_size=6))
def test_a_reader_gets_the_newest_in_order_however_rarely_it_looks(bursts: list[int]) -> None:
    ring = create_ring(4)
    try:
        reader, number, seen = MetricReader(ring), 0, list[int]()
        for burst in bursts:
            for _ in range(burst):
                number += 1
                put_metric(ring, number, 1, -1, float(number), b"loss")
            found = reader.read()
            assert len(found) == min(burst, METRIC_SLOTS)
            assert all(metric.value == metric.number for metric in found)
            seen += [metric.number for metric in found]
        assert seen == sorted(set(seen))
        assert not seen or seen[-1] == number
    finally:
        ring.close()


def test_a_value_that_is_being_written_is_read_later_and_another_sidecar_continues() -> None:
    ring = create_ring(8)
    put_metric(ring, 1, 1, -1, 0.5, b"loss")
    put_metric(ring, 2, 1, -1, 0.25, b"loss")
    place = ring.end_of_phases + 2 * 104 + 24
    before = ring.buffer[place : place + 8]
    ring.buffer[place : place + 8] = b"\1" * 8
    reader = MetricReader(ring)
    assert [metric.number for metric in reader.read()] == [1]
    ring.buffer[place : place + 8] = before
    assert [metric.value for metric in reader.read()] == [0.25]
    ring.words[METRICS_TAKEN] = 1
    assert [metric.number for metric in MetricReader(ring).read()] == [2]


def numbers(values: Mapping[int, object] | list[RingMetric]) -> list[int]:
    return [value.number for value in values] if isinstance(values, list) else sorted(values)


def test_the_outbox_keeps_what_is_not_acknowledged_and_no_more_than_it_may() -> None:
    outbox = MetricOutbox(capacity=2000)
    outbox.add(RingMetric(number, 1, -1, 0.0, "a") for number in range(1, 1501))
    assert numbers(outbox.take()) == list(range(1, 1025))
    assert not outbox.may_send, "as many are in flight as Monitor takes"
    outbox.acknowledge(1000)
    assert (outbox.floor, numbers(outbox.take())) == (1000, list(range(1025, 1501)))
    outbox.rewind()
    assert numbers(outbox.take()) == list(range(1001, 1501))
    outbox.refuse()
    assert (outbox.floor, len(outbox)) == (1500, 0)
    outbox.add(RingMetric(number, 1, -1, 0.0, "a") for number in range(1501, 4501))
    assert (outbox.floor, len(outbox)) == (2500, 2000)
    outbox.take()
    outbox.clear()
    assert (outbox.floor, len(outbox)) == (4500, 0)


@pytest.mark.processes
def test_rank_0_delivers_what_it_logs_also_at_its_end(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    trainer = start_trainer(RANK="0", WORLD_SIZE="2")
    trainer.do("for i in range(1, 2001): report(32); i % 10 or log_metrics({'loss': 1 / i}, step=i)")
    other = start_trainer(RANK="1", WORLD_SIZE="2")
    other.do("report(32); log_metrics({'other': 1})")
    trainer.do("log_metrics({'accuracy': float('nan'), 'last': 7})")
    trainer.end()
    other.end()
    wait_until(lambda: len(monitor.metrics) == 201)
    found = [monitor.metrics[number] for number in range(1, 202)]
    assert [(value.name, value.step, value.value) for value in found[:200]] == [
        ("loss", 10 * number, 1 / (10 * number)) for number in range(1, 201)
    ]
    assert (found[200].name, found[200].HasField("step"), found[200].value) == ("last", False, 7.0)
    assert "'accuracy' is left out: expected a finite number" in trainer.log.read_text()


@pytest.mark.processes
def test_what_is_logged_while_monitor_is_away_arrives_later(
    monitor: RecordingMonitor, start_trainer: StartTrainer
) -> None:
    trainer = start_trainer()
    trainer.do("log_metrics({'loss': 1})")
    wait_until(lambda: len(monitor.metrics) == 1)
    monitor.stop()
    trainer.do("for i in range(2, 51): log_metrics({'loss': i})")
    monitor.start()
    wait_until(lambda: len(monitor.metrics) == 50)
    assert [value.value for _, value in sorted(monitor.metrics.items())] == list(range(1, 51))


@pytest.mark.processes
def test_a_monitor_of_an_earlier_version_which_acknowledges_none_holds_nothing_up(
    monitor: RecordingMonitor, start_trainer: StartTrainer
) -> None:
    monitor.acknowledges_metrics = False
    trainer = start_trainer()
    trainer.do("report(1); log_metrics({'loss': 1})")
    sidecar = trainer.ask("_client.sidecar_pid")
    trainer.end()
    wait_until(lambda: len(monitor.metrics) == 1)
    assert sidecar
