"""What services keep in memory and on disk."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import psutil

from malletrain.runtime.settings_file import SERVICES

MIB = 2**20
STORING = tuple(name for name in SERVICES if name != "scavenger")
"""Services with a database."""


def pss_mib(process: psutil.Process) -> float | None:
    """Memory of a process in MiB, in which pages that processes share count once; None if it has ended."""
    with suppress(psutil.Error):
        return float(process.memory_full_info().pss) / MIB
    return None


def database_bytes(folder: Path, service: str) -> int:
    """Size of a service's tables in a state folder, also of what is only in SQLite's write-ahead log yet."""
    with closing(sqlite3.connect(f"file:{folder / service}.sqlite?mode=ro", uri=True)) as database:
        pages, free, size = (
            database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


def log_bytes(folder: Path) -> int:
    """Size of the logs of all services in a state folder."""
    return sum(log.stat().st_size for log in (folder / "logs").glob("*.log"))
