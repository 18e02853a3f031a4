"""How much memory this process can still get without that anything is killed for want of it. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from malletrain.client.warn_once import in_words

_AVAILABLE = re.compile(r"^MemAvailable: *(\d+) kB$", re.MULTILINE)
_V2 = ("memory.max", "memory.current", "inactive_file", "active_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file")
_NO_LIMIT = 1 << 60
"""What version 1 shows without a limit is a little less than 2^63."""
_MARGIN = 1.25
"""The rest of the process, and others, need memory meanwhile, too."""


def fits_in_memory(size: int, available: int | None) -> bool:
    """Whether a copy of a size in bytes can be made, with a quarter of it to spare; True where that is not known."""
    return size == 0 or available is None or size * _MARGIN <= available


def no_copy(size: int, available: int, share: float) -> str:
    """What is said where a copy of a size in bytes does not fit.

    Args:
        size: Bytes of the copy.
        available: Bytes that are available.
        share: Largest share of the loop's time for checkpoints, from 0 to 1.
    """
    return (
        f"checkpoints are written in the training loop, in {share:.0%} of its time: a copy of {in_words(size)} does not"
        f" fit in memory ({in_words(available)} available)"
    )


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can still be used: of the machine, and within the limits of this process's cgroups (v2 and v1).

    What the file cache holds counts as available: the kernel gives it up first. A limit of a cgroup that can't be seen
    from here, outside of a container, does not count.

    Args:
        root: Where /proc and /sys are.

    Returns:
        None where nothing tells.
    """
    amounts = [left for folder, names in _cgroups(root) if (left := _left_in(folder, names)) is not None]
    match = _AVAILABLE.search(_text(root / "proc/meminfo"))
    if match is not None:
        amounts.append(int(match[1]) * 1024)
    return min(amounts, default=None)


def _cgroups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str, str]]]:
    """The folders of this process's memory cgroups and of those above: each may have a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers:
            mount, names = root / "sys/fs/cgroup", _V2
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", _V1
        else:
            continue
        below = PurePosixPath(path.lstrip("/"))
        # In a container the path may be that outside of it: its own cgroup is the mount itself.
        for part in (below, *below.parents):
            yield mount / part, names


def _left_in(folder: Path, names: tuple[str, str, str, str]) -> int | None:
    """Bytes that are left of a cgroup's limit; None without a limit."""
    limit, used = _number(_text(folder / names[0])), _number(_text(folder / names[1]))
    if limit is None or used is None or limit >= _NO_LIMIT:
        return None
    stat = _text(folder / "memory.stat")
    cache = sum(int(match[1]) for name in names[2:] if (match := re.search(rf"^{name} (\d+)$", stat, re.MULTILINE)))
    return max(0, limit - used + cache)


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
