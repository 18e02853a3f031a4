"""When the parts of a log were written: beside each worker's log lies a file of sizes, and when it was first as large.

Workers write their logs by themselves, and their lines need not say when. So whoever has started a worker looks about
once a second how large its log is (`log_times_writer.py`), and JobManager tells by that when a line was written. Pure.

The file is text, a line "SIZE UNIX_MS" for each look at which the log had grown. The job can write anything there:
what makes no sense is passed over, and a time is only as true as the job lets it be.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

MAX_ENTRIES = 4096
"""In a file; older ones are thinned."""
MAX_FILE_BYTES = MAX_ENTRIES * 48
_LATEST_MS = 1 << 53
_LARGEST_SIZE = 1 << 60
_MAX_DIGITS = 19


@dataclass(frozen=True)
class LogTimes:
    """Sizes of a log, and when it was first seen as large.

    Attributes:
        sizes: In bytes, ascending.
        times: For each, in milliseconds since the epoch, not descending.
    """

    sizes: tuple[int, ...] = ()
    times: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The last size, in bytes; 0 if there is none."""
        return self.sizes[-1] if self.sizes else 0

    @property
    def last_ms(self) -> int:
        """The last time, in milliseconds since the epoch; 0 if there is none."""
        return self.times[-1] if self.times else 0

    def seen(self, size: int, now_ms: int) -> LogTimes:
        """After a look.

        Args:
            size: How large the log is, in bytes. Less than before: it was cut, and what was known is void.
            now_ms: When, in milliseconds since the epoch. A clock that was put back stands still.
        """
        if size == self.size:
            return self
        if size < self.size:
            return LogTimes((size,), (now_ms,)) if size else LogTimes()
        return LogTimes((*self.sizes, size), (*self.times, max(now_ms, self.last_ms)))

    def thinned(self) -> LogTimes:
        """Every other entry of the older half: what is new stays as exact as it is, what is old gets coarser."""
        half = len(self.sizes) // 2
        # An entry says by when all up to its size was written, so the later one of two is kept.
        return LogTimes(self.sizes[1:half:2] + self.sizes[half:], self.times[1:half:2] + self.times[half:])

    def reduced(self, most: int) -> LogTimes:
        """At most about so many entries, evenly chosen; the last one stays."""
        step = -(-len(self.sizes) // max(1, most))
        if step <= 1:
            return self
        begin = (len(self.sizes) - 1) % step
        return LogTimes(self.sizes[begin::step], self.times[begin::step])

    def ms_at(self, position: int) -> int:
        """By when it was written up to a position, in milliseconds since the epoch; 0: later than the last look."""
        place = bisect_left(self.sizes, position)
        return self.times[place] if place < len(self.sizes) else 0

    def size_before(self, unix_ms: int) -> int:
        """The largest size that the log is known to have had before a time, in bytes."""
        place = bisect_left(self.times, unix_ms)
        return self.sizes[place - 1] if place else 0

    def text(self) -> str:
        """As a file."""
        return "".join(map(entry_text, self.sizes, self.times))


def entry_text(size: int, unix_ms: int) -> str:
    """One line of the file."""
    return f"{size} {unix_ms}\n"


def read_times(content: bytes, most: int = MAX_ENTRIES) -> LogTimes:
    """What a file says; lines that make no sense are passed over.

    No more than the last `MAX_ENTRIES` lines are looked at: whoever has planted the file pays for no more work.

    Args:
        content: Of the file, as much as was read.
        most: At how many lines to look, evenly chosen among these, the last one included.
    """
    lines = content[:MAX_FILE_BYTES].removesuffix(b"\n").rsplit(b"\n", MAX_ENTRIES)[-MAX_ENTRIES:]
    step = -(-len(lines) // max(1, most))
    sizes: list[int] = []
    times: list[int] = []
    for line in lines[(len(lines) - 1) % step :: step]:
        size, _, unix_ms = line.partition(b" ")
        if not (_is_number(size) and _is_number(unix_ms)):
            continue
        found, at = int(size), int(unix_ms)
        if not (0 < found < _LARGEST_SIZE and 0 < at < _LATEST_MS):
            continue
        if sizes and found <= sizes[-1]:
            sizes, times = [], []  # it was cut
        elif times and at < times[-1]:
            continue
        sizes.append(found)
        times.append(at)
    return LogTimes(tuple(sizes), tuple(times))


def _is_number(text: bytes) -> bool:
    return len(text) <= _MAX_DIGITS and text.isdigit()
