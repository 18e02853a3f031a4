"""Whether the kernel has killed processes of this machine for want of memory."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_RECENT_SECONDS = 10.0
"""The kernel counts before the process has ended, and the process ends when its memory has been freed."""
_LOOK_SECONDS = 1.0


_SHELL = 128
"""What a shell adds to the number of the signal that has killed its command."""


def may_be_for_memory(code: int) -> bool:
    """Whether an exit status may be that of a process that the kernel has killed for want of memory."""
    return code in (-signal.SIGKILL, _SHELL + signal.SIGKILL)


def oom_counters(root: Path = Path("/")) -> tuple[Path, ...]:
    """Files with such counts: those of this process's memory cgroup (v2 and v1), and that of the whole machine."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return (*_cgroup_files(root, lines), root / "proc/vmstat")


def _cgroup_files(root: Path, lines: Iterable[str]) -> Iterator[Path]:
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        below = path.lstrip("/")
        if not controllers:
            yield root / "sys/fs/cgroup" / below / "memory.events"
        elif "memory" in controllers.split(","):
            yield root / "sys/fs/cgroup/memory" / below / "memory.oom_control"


class OomKills:
    """Notices when one of the counts grows. Look often: a growth counts as of when it is seen."""

    def __init__(self, files: Iterable[Path] | None = None) -> None:
        """Take the present counts as the beginning.

        Args:
            files: See `oom_counters`, the default. Files that can't be read are left out.
        """
        self._files = tuple(oom_counters() if files is None else files)
        self._counts = self._read()
        self._grown_at = float("-inf")
        self._next_look = float("-inf")

    def look(self, now: float) -> None:
        """Look whether there were any, at most once a second; `now` is in monotonic seconds."""
        if now >= self._next_look:
            self._look(now)

    def recent(self, now: float) -> bool:
        """Whether there was one just now, in monotonic seconds."""
        self._look(now)
        return now - self._grown_at <= _RECENT_SECONDS

    def _look(self, now: float) -> None:
        counts = self._read()
        if any(count > self._counts.get(path, count) for path, count in counts.items()):
            self._grown_at = now
        self._counts = counts
        self._next_look = now + _LOOK_SECONDS

    def _read(self) -> dict[Path, int]:
        return {path: count for path in self._files if (count := _count_in(path)) is not None}


def _count_in(path: Path) -> int | None:
    try:
        match = _COUNT.search(path.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return None if match is None else int(match[1])
