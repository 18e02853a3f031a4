"""Logs by time: lines of several nodes in the order in which they were written, with times, and since a moment."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from malletrain.common.job_folder import log_times_path
from malletrain.common.log_times import LogTimes
from malletrain.job_manager import log_reader
from malletrain.job_manager.launching.folder import JobFolder
from malletrain.job_manager.log_reader import LogReader
from malletrain.job_manager.logs import LogPart, stream

BEGIN = 1_700_000_000_000
"""The time of the first line, in milliseconds since the epoch."""


class Logs:
    """Logs of some nodes, whose lines are written at given seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = JobFolder(folder)
        self.folder.logs.mkdir()
        self._times: dict[str, LogTimes] = {}

    def add(self, node: str, second: float, text: str, known: bool = True) -> None:
        path = self.folder.logs / f"{node}.0.log"
        with path.open("a") as file:
            file.write(text)
        ms = BEGIN + int(1000 * second)
        os.utime(path, ns=(ms * 1_000_000, ms * 1_000_000))
        if known:
            times = self._times.get(node, LogTimes()).seen(path.stat().st_size, ms)
            self._times[node] = times
            log_times_path(path).write_text(times.text())

    def read(self, reader: LogReader) -> list[tuple[float, str]]:
        """Seconds and texts of all lines; -1: not known when."""
        lines = []
        while found := reader.read(to_the_end=True):
            lines += [((line.unix_ms - BEGIN) / 1000 if line.unix_ms else -1, line.text) for line in found]
        return lines


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


async def texts(parts: AsyncIterator[LogPart]) -> list[str]:
    return [line async for part in parts for line in part.lines]


def yes() -> bool:
    return True


def no() -> bool:
    return False


def test_lines_of_several_nodes_come_by_time(logs: Logs) -> None:
    logs.add("n1", 1, "a\n")
    logs.add("n2", 2, "b\n")
    logs.add("n1", 3, "c\nd")
    logs.add("n2", 4, "e\n")
    logs.add("n1", 5, "d\n")
    assert logs.read(LogReader(logs.folder)) == [
        (1, "n1 | a"),
        (2, "n2 | b"),
        (3, "n1 | c"),
        (4, "n2 | e"),
        (5, "n1 | dd"),
    ]


def test_what_was_written_after_the_last_look_is_as_old_as_its_file(logs: Logs) -> None:
    logs.add("n1", 1, "a\n")
    logs.add("n1", 9, "b\n", known=False)
    logs.add("n2", 5, "c\n")
    assert logs.read(LogReader(logs.folder)) == [(1, "n1 | a"), (5, "n2 | c"), (9, "n1 | b")]


def test_without_times_the_file_that_was_written_last_comes_last(logs: Logs) -> None:
    logs.add("n1", 9, "a\nb\n", known=False)
    logs.add("n2", 5, "c\n", known=False)
    assert logs.read(LogReader(logs.folder)) == [(-1, "n2 | c"), (-1, "n1 | a"), (-1, "n1 | b")]


def test_what_is_added_between_two_looks_is_new(logs: Logs) -> None:
    reader = LogReader(logs.folder)
    assert reader.read() == []
    logs.add("n1", 7, "a\n", known=False)
    assert [(line.text, line.unix_ms) for line in reader.read(fresh=True)] == [("n1 | a", BEGIN + 7000)]


@pytest.mark.parametrize("seed", range(6))
def test_long_logs_come_by_time_in_parts(logs: Logs, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(log_reader, "_BYTES_PER_READ", 4000)
    random_ = random.Random(seed)
    expected = []
    half = dict.fromkeys(("n1", "n2", "n3"), "")
    for second in range(300):
        node = random_.choice(list(half))
        text = half[node] + "x" * random_.choice([1, 10, 100]) + f" {second}"
        if random_.random() < 0.1 and not half[node]:
            logs.add(node, second, text)  # its end comes later
            half[node] = text
            continue
        logs.add(node, second, text.removeprefix(half[node]) + "\n")
        half[node] = ""
        expected.append((float(second), f"{node} | {text}"))
    found = logs.read(LogReader(logs.folder))
    whole = [(second, text) for second, text in found if (second, text) in set(expected)]
    assert whole == expected
    assert len(found) == len(expected) + sum(bool(text) for text in half.values()), "ends of logs without a line end"
    assert [second for second, _ in found] == sorted(second for second, _ in found)


def test_of_a_thousand_files_some_parts_are_read_at_a_time(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_BYTES_PER_READ", 2000)
    for number in range(100):
        logs.add(f"n{number:03d}", 0, "half a line")  # none of these has an end
    for second in range(1, 50):
        logs.add("n100", second, f"{second} {'x' * 100}\n")
    reader, found = LogReader(logs.folder), []
    while lines := reader.read():
        found += [line.text for line in lines]
    assert [text.split()[2] for text in found] == [str(second) for second in range(1, 50)]


@pytest.mark.parametrize("since", [0, 1, 3, 3.5, 5, 100])
@pytest.mark.parametrize("tail", [0, 2])
async def test_lines_since_a_moment(logs: Logs, since: float, tail: int) -> None:
    for second in range(6):
        logs.add(f"n{second % 2}", second, f"begin {second}, ")
        logs.add(f"n{second % 2}", second + 0.5, f"end {second}\n")
    since_ms = BEGIN + int(1000 * since)
    found = await texts(stream(logs.folder, tail, False, {}, yes, no, since_ms=since_ms))
    wanted = [f"n{second % 2} | begin {second}, end {second}" for second in range(6) if second + 0.5 >= since]
    assert found == wanted[-tail:]


async def test_going_on_since_a_moment_repeats_and_loses_nothing(logs: Logs) -> None:
    for second in range(1000):
        logs.add(f"n{second % 3}", second, f"{second}\n")
    positions: dict[str, int] = {}
    lines: list[str] = []
    ended, random_ = False, random.Random(1)
    while not ended:
        parts = stream(logs.folder, 0, True, positions, yes, no, since_ms=BEGIN + 100_000)
        async for part in parts:
            assert len(part.lines) == len(part.unix_ms)
            lines += part.lines
            positions |= part.positions
            ended = part.ended
            if random_.random() < 0.5:
                break
    assert [int(line.partition(" | ")[2]) for line in lines] == list(range(100, 1000))


async def test_a_log_that_nobody_wrote_since_is_passed_over(logs: Logs) -> None:
    logs.add("n1", 1, "old\n", known=False)
    logs.add("n2", 9, "not known when\n", known=False)
    found = await texts(stream(logs.folder, 0, False, {}, yes, no, since_ms=BEGIN + 5000))
    assert found == ["n2 | not known when"]


@pytest.mark.parametrize(
    "content", [b"\xff", b"999999 1\n", b"1 999999999999999999\n2 1\n", b"5 1\n" * 40_000, b"2 1\n2 2\n1 3\n9 9\n"]
)
async def test_whatever_a_job_says_of_its_times_no_line_is_lost(logs: Logs, content: bytes) -> None:
    for second in range(10):
        logs.add("n1", second, f"{second}\n")
    log_times_path(logs.folder.logs / "n1.0.log").write_bytes(content)
    assert [text for _, text in logs.read(LogReader(logs.folder))] == [f"n1 | {second}" for second in range(10)]
    assert len(await texts(stream(logs.folder, 3, False, {}, yes, no))) == 3
