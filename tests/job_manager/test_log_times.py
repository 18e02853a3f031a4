"""Logs by time: lines of several nodes in the order in which they were written, with times, and since a moment."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import pytest

from malletrain.common.files import open_plain
from malletrain.common.job_folder import log_times_path
from malletrain.common.log_times import MAX_ENTRIES, MAX_FILE_BYTES, LogTimes, read_times
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
            times = self._times.get(node, LogTimes()).after_look(path.stat().st_size, ms)
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
    monkeypatch.setattr(log_reader, "BYTES_PER_READ", 4000)
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
    monkeypatch.setattr(log_reader, "BYTES_PER_READ", 2000)
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


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_one_read_is_limited_whatever_was_written_at_once(logs: Logs, fresh: bool, known: bool) -> None:
    reader = LogReader(logs.folder)
    logs.add("n1", 1, "no end", known=False)
    logs.add("n2", 9, "".join(f"{number:099d}\n" for number in range(60_000)), known=known)
    logs.add("n3", 10, "later\n", known=known)
    texts = []
    while lines := reader.read(fresh=fresh):
        assert sum(len(line.text) for line in lines) < 5 << 20
        texts += [line.text for line in lines]
    assert texts == [*(f"n2 | {number:099d}" for number in range(60_000)), "n3 | later"]


def test_of_very_short_lines_one_read_takes_fewer(logs: Logs) -> None:
    """Two million of them at once took half a gigabyte."""
    count = 1_000_000
    (logs.folder.logs / "n1.0.log").write_bytes(b"x\n" * count)
    reader, reads = LogReader(logs.folder), []
    while found := reader.read():
        reads.append(len(found))
    assert sum(reads) == count
    assert max(reads) < 200_000


def test_lines_without_an_end_use_up_nothing_of_what_others_may_take(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "BYTES_PER_READ", 100_000)
    for number in range(30):
        logs.add(f"n{number:02d}", number, "x" * 60_000, known=False)
    logs.add("n99", 100, "".join(f"{number:099d}\n" for number in range(20_000)), known=False)
    reader, found = LogReader(logs.folder), 0
    while lines := reader.read():
        assert sum(len(line.text) for line in lines) <= 110_000 + log_reader.CHUNK_BYTES
        found += len(lines)
    assert found == 20_000


class Parsed:
    """Counts what is looked at of files of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: list[bytes] = []
        self.most = 0
        monkeypatch.setattr(log_reader, "read_times", self)

    def __call__(self, content: bytes, most: int = MAX_ENTRIES) -> LogTimes:
        self.contents.append(content)
        self.most += most
        return read_times(content, most)


def plant(logs: Logs, count: int, content: bytes) -> None:
    """Logs of one line, each a second later, with the same file of times beside each of them."""
    planted = logs.folder.path / "planted"
    planted.write_bytes(content)
    for number in range(count):
        logs.add(f"n{number:03d}", number, "x" * 99_999 + "\n", known=False)
        log_times_path(logs.folder.logs / f"n{number:03d}.0.log").hardlink_to(planted)


@pytest.mark.parametrize("line", [b"%d 1700000000000\n", b"%d 1\n", b"\n"])
def test_of_planted_times_one_read_looks_at_little(logs: Logs, monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    content = b"".join(line % number if b"%" in line else line for number in range(1, 99_000))
    plant(logs, 200, content[-MAX_FILE_BYTES:])
    parsed = Parsed(monkeypatch)
    reader = LogReader(logs.folder)
    assert reader.read()
    assert len(parsed.contents) == 200
    assert sum(map(len, parsed.contents)) <= 8 << 20
    assert parsed.most <= 1 << 18
    while reader.read():
        pass
    assert len(parsed.contents) == 200, "the others did not change"


def test_beyond_what_one_read_looks_at_the_newest_logs_have_times(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(logs, 100, b"1 1700000000000\n" * 2000 + b"100000 1700000000000\n")
    monkeypatch.setattr(log_reader, "TIMES_BYTES_PER_READ", 10_000)
    parsed = Parsed(monkeypatch)
    found = [line for line in LogReader(logs.folder).read() if line.unix_ms]
    assert sum(map(len, parsed.contents)) <= 10_000
    assert {line.text[:4] for line in found} == {f"n{number:03d}" for number in range(87, 100)}


def test_times_of_logs_that_were_read_are_not_looked_at(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    for second in range(3):
        logs.add(f"n{second}", second, "a\n")
    reader = LogReader(logs.folder)
    assert len(reader.read()) == 3
    logs.add("n1", 5, "b\n")
    log_times_path(logs.folder.logs / "n2.0.log").write_text("1 1\n")
    parsed = Parsed(monkeypatch)
    assert [line.text for line in reader.read()] == ["n1 | b"]
    assert len(parsed.contents) == 1


def test_logs_that_cannot_be_opened_are_tried_a_few_times_only(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    opens = 0

    def open_some(path: Path) -> BinaryIO:
        nonlocal opens
        opens += 1
        if path.name.startswith("closed"):
            raise PermissionError(13, "closed", str(path))
        return open_plain(path)

    for number in range(300):
        logs.add(f"closed{number}", number, "", known=False)
        os.truncate(logs.folder.logs / f"closed{number}.0.log", 1 << 42)
    logs.add("n1", 1000, "a\nb\n", known=False)
    monkeypatch.setattr(log_reader, "open_plain", open_some)
    reader = LogReader(logs.folder)
    assert [line.text for line in reader.read()] == ["n1 | a", "n1 | b"]
    assert opens <= 4 * 301
    opens = 0
    assert reader.read() == []
    assert opens <= 4 * 301


def test_a_long_line_after_its_state_was_shown_always_gives_lines(logs: Logs) -> None:
    logs.add("n1", 1, "10%\r", known=False)
    reader = LogReader(logs.folder)
    assert [line.text for line in reader.read(states=True)] == ["n1 | 10%"]
    logs.add("n1", 2, "\r" * 5_000_000, known=False)
    while lines := reader.read(fresh=True):
        assert len(lines) <= (4 << 20) // 65_536 + 4
    logs.add("n1", 3, "\rend\n", known=False)
    assert [line.text for line in reader.read(fresh=True)] == ["n1 | end"]
