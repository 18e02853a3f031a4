"""When the parts of a log were written: sizes and times beside it, bounded, whatever a job leaves in their place."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from malletrain.common import log_times
from malletrain.common.job_folder import log_times_path
from malletrain.common.log_times import (
    MAX_BYTES_PER_LOOK,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_LOGS,
    LogTimes,
    LogTimesWriter,
    read_times,
)
from tests.support.waiting import wait_until


class Clock:
    """A clock that is set by hand, in seconds since the epoch."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Written:
    """A log, and what writes its times; each `add` is a second later."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "n1.0.log"
        self.clock = Clock()
        self.warnings: list[str] = []
        self.writer = self.anew()

    def anew(self) -> LogTimesWriter:
        """One that knows nothing yet; its thread is not waited for."""
        writer = LogTimesWriter(self.warnings.append, now=self.clock, look_seconds=3600)
        writer.watch(self.log)
        self.writer = writer
        return writer

    def add(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)
        self.clock.seconds += 1
        self.writer.look()

    @property
    def times(self) -> LogTimes:
        return read_times(log_times_path(self.log).read_bytes())


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_each_look_at_which_a_log_has_grown_is_written_down(written: Written) -> None:
    written.writer.look()
    assert not log_times_path(written.log).exists(), "there is no log yet"
    written.add("12345")
    written.add("")
    written.add("678")
    assert written.times == LogTimes((5, 8), (1_001_000, 1_003_000))
    assert log_times_path(written.log).stat().st_mode & 0o077 == 0


def test_one_that_starts_anew_goes_on_with_what_is_known(written: Written) -> None:
    written.add("12345")
    written.anew()
    written.add("678")
    assert written.times == LogTimes((5, 8), (1_001_000, 1_002_000))


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_log_that_begins_anew_has_new_times(written: Written, how: str) -> None:
    written.add("x" * 100)
    if how == "cut":
        os.truncate(written.log, 0)
    else:
        written.log.rename(written.log.with_suffix(".1"))
    written.add("12345")
    assert written.times == LogTimes((5,), (1_002_000,))


def test_a_clock_that_is_put_back_stands_still(written: Written) -> None:
    written.add("1")
    written.clock.seconds = 10
    written.add("2")
    assert written.times == LogTimes((1, 2), (1_001_000, 1_001_000))


def test_the_file_stays_small_and_what_is_new_exact(written: Written) -> None:
    known = LogTimes(tuple(range(1, MAX_ENTRIES + 1)), tuple(range(1, MAX_ENTRIES + 1)))
    log_times_path(written.log).write_text(known.text())
    written.log.write_text("x" * MAX_ENTRIES)
    for _ in range(10):
        written.add("x")
    found = written.times
    assert MAX_ENTRIES // 2 < len(found.sizes) < MAX_ENTRIES
    assert log_times_path(written.log).stat().st_size < MAX_FILE_BYTES
    newest = MAX_ENTRIES // 4
    assert found.sizes[-newest:] == tuple(range(MAX_ENTRIES + 11 - newest, MAX_ENTRIES + 11))


def test_thinning_is_only_ever_late() -> None:
    """An entry says by when all up to its size was written: fewer entries say a later time, never an earlier one."""
    known = LogTimes()
    for number in range(1, 200):
        known = known.after_look(10 * number, 1000 * number)
    for fewer in (known.thinned(), known.thinned().thinned(), known.reduced(7)):
        assert fewer.size == known.size
        assert all(fewer.ms_at(position) >= known.ms_at(position) for position in range(1, known.size + 1))
        assert all(fewer.size_before(ms) <= known.size_before(ms) for ms in range(0, 210_000, 500))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"1\n2 x\n-1 5\n5 -1\n0 5\n5 0\n 3 4\n" + b"9" * 5000 + b" 4\n4 " + b"9" * 19,
        b"\n" * 100_000,
    ],
)
def test_what_makes_no_sense_is_passed_over(content: bytes) -> None:
    assert read_times(content) == LogTimes()
    assert read_times(content + b"\n7 8\n") == LogTimes((7,), (8,))
    assert read_times(content + b"\n" * MAX_FILE_BYTES + b"7 8\n") == LogTimes(), "no more is read"


def test_whatever_a_file_says_its_times_are_in_order() -> None:
    random_ = random.Random(1)
    for _ in range(200):
        lines = [f"{random_.randrange(-3, 60)} {random_.randrange(-3, 60)}" for _ in range(random_.randrange(40))]
        found = read_times("\n".join(lines).encode())
        assert list(found.sizes) == sorted(set(found.sizes))
        assert list(found.times) == sorted(found.times)


@pytest.mark.parametrize("what", ["a folder", "a pipe", "a link"])
def test_what_a_job_has_placed_there_harms_nothing(written: Written, tmp_path: Path, what: str) -> None:
    path, secret = log_times_path(written.log), tmp_path / "secret"
    secret.write_text("secret")
    written.add("1")
    path.unlink()
    if what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(secret)
    written.add("2")
    written.add("3")
    assert len(written.warnings) == 1, "told once"
    assert secret.read_text() == "secret"
    assert len(list(tmp_path.iterdir())) == 3


def test_only_so_many_logs_are_looked_at_and_only_logs(tmp_path: Path) -> None:
    writer = LogTimesWriter(pytest.fail, look_seconds=3600)
    for number in range(MAX_LOGS + 1):
        writer.watch(tmp_path / f"n{number}.0.log")
    writer.watch(tmp_path / "n1.times")
    for name in ("n0.0.log", "n1.0.log", "n1.times"):
        (tmp_path / name).write_text("x")
    writer.look()
    assert sorted(path.name for path in tmp_path.glob("*.times")) == ["n1.0.times", "n1.times"]
    assert (tmp_path / "n1.times").read_text() == "x"


def test_its_thread_looks_by_itself_and_once_more_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "n1.0.log"
    log.write_text("1")
    writer = LogTimesWriter(pytest.fail, look_seconds=0.01)
    writer.watch(log)
    wait_until(log_times_path(log).exists, 10, "the first look")
    writer.close(10)
    slow = LogTimesWriter(pytest.fail, look_seconds=3600)
    slow.watch(log)
    log.write_text("12")
    slow.close(10)
    assert read_times(log_times_path(log).read_bytes()).size == 2


def test_of_a_file_the_last_entries_are_kept() -> None:
    content = "".join(f"{number} {number}\n" for number in range(1, 20_001)).encode()
    assert len(content) > MAX_FILE_BYTES
    content = content[-MAX_FILE_BYTES:].partition(b"\n")[2]
    last = tuple(range(20_001 - MAX_ENTRIES, 20_001))
    assert read_times(content) == LogTimes(last, last)
    fewer = read_times(content, max_lines=100)
    assert 90 <= len(fewer.sizes) <= 100
    assert fewer.size == 20_000
    assert set(fewer.sizes) <= set(last)


class Reads:
    """Counts how often, and how much, the writer reads of what was there before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        monkeypatch.setattr(log_times, "read_times", self)

    def __call__(self, content: bytes) -> LogTimes:
        self.sizes.append(len(content))
        return read_times(content)


def planted_times(count: int = 60_000) -> bytes:
    """As much as is read of a file."""
    return "".join(f"{number} 1\n" for number in range(1, count)).encode()[:MAX_FILE_BYTES].rpartition(b"\n")[0] + b"\n"


@pytest.mark.parametrize("entries", [0, 10, MAX_ENTRIES, 60_000])
def test_what_cannot_be_written_is_not_read_again(
    written: Written, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(log_times, "write_atomically", refuse)
    monkeypatch.setattr(log_times, "open_log", refuse)
    log_times_path(written.log).write_bytes(planted_times(entries))
    reads = Reads(monkeypatch)
    written.log.write_text("x" * 100_000)
    for _ in range(5):
        written.add("more")
    assert len(reads.sizes) == 1
    assert len(written.warnings) == 1


def test_it_goes_on_once_it_can_write_again(written: Written) -> None:
    path = log_times_path(written.log)
    path.mkdir()
    written.add("1")
    written.add("2")
    path.rmdir()
    written.add("3")
    written.add("4")
    assert written.times == LogTimes((3, 4), (1_003_000, 1_004_000))
    assert len(written.warnings) == 1


def test_one_look_reads_little_of_what_was_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch)
    writer = LogTimesWriter(pytest.fail, look_seconds=3600)
    logs = [tmp_path / f"n{number}.0.log" for number in range(40)]
    for log in logs:
        log.write_text("x" * 100_000)
        log_times_path(log).write_bytes(planted_times())
    writer.watch(*logs)
    for _ in range(20):
        before = sum(reads.sizes)
        writer.look()
        assert sum(reads.sizes) - before <= MAX_BYTES_PER_LOOK + MAX_FILE_BYTES
    assert len(reads.sizes) == 40, "each had its turn, once"
    assert all(read_times(log_times_path(log).read_bytes()).size == 100_000 for log in logs)


def test_a_log_is_looked_at_once_more_when_its_worker_has_ended(written: Written) -> None:
    written.add("1")
    written.writer.forget(written.log)
    written.add("2")
    written.add("3")
    assert list(written.times.sizes) == [1, 2]
    written.writer.watch(written.log)
    written.writer.forget(written.log)
    written.writer.watch(written.log)
    written.add("4")
    written.add("5")
    assert list(written.times.sizes) == [1, 2, 4, 5]
    written.writer.forget(written.log.with_name("unknown.log"))


def test_a_name_forges_no_line_of_the_agents_log(tmp_path: Path) -> None:
    warnings: list[str] = []
    writer = LogTimesWriter(warnings.append, look_seconds=3600)
    log = tmp_path / "n1\n2026-01-01 ERROR forged.0.log"
    log.write_text("x")
    log_times_path(log).mkdir()
    writer.watch(log)
    writer.look()
    assert len(warnings) == 1
    assert "\n" not in warnings[0]


def test_a_failure_of_its_thread_is_told_and_the_next_log_begins_another(tmp_path: Path) -> None:
    warnings: list[str] = []
    broken = [RuntimeError("a clock that is no clock")]

    def now() -> float:
        if broken:
            raise broken.pop()
        return 5.0

    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_text("x")
    second.write_text("y")
    writer = LogTimesWriter(warnings.append, now=now, look_seconds=0.01)
    writer.watch(first)
    wait_until(lambda: warnings, 10, "the warning")
    assert warnings == ["when logs were written is not kept for now: RuntimeError('a clock that is no clock')"]
    writer.watch(second)
    wait_until(lambda: log_times_path(first).exists() and log_times_path(second).exists(), 10, "the times of both")
    writer.close(10.0)
