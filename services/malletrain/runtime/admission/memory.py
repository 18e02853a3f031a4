"""Gives memory back to the machine that large messages have taken: the C library keeps what is freed to it."""

from __future__ import annotations

import asyncio
import ctypes
import ctypes.util
import os
from collections.abc import Callable
from pathlib import Path

_LOOK_SECONDS = 2.0
_GROWTH_BYTES = 16 * 1024 * 1024
_LOOKS_AFTER_GROWTH = 15
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory that this process has now, in bytes."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def load_trim() -> Callable[[], None]:
    """What gives freed memory back: malloc_trim(3) of glibc; nothing where the C library is another one."""
    library = ctypes.CDLL(None)
    found = getattr(library, "malloc_trim", None)
    if found is None:
        return lambda: None
    return lambda: found(0)


class MemoryReturn:
    """Looks at what the process has, and has freed memory given back when that has grown."""

    def __init__(self, resident: Callable[[], int] = resident_bytes, trim: Callable[[], None] | None = None) -> None:
        """Look at nothing yet.

        Args:
            resident: Memory of this process in bytes.
            trim: Gives back what is free.
        """
        self._resident = resident
        self._trim = trim or load_trim()
        self._after_last = 0
        self._looks_left = 0

    async def run(self) -> None:
        """Look every two seconds, until cancelled."""
        self._after_last = self._resident()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Give memory back if there is more of it, or there was shortly before: calls that hold some end later."""
        present = self._resident()
        if present >= self._after_last + _GROWTH_BYTES:
            self._looks_left = _LOOKS_AFTER_GROWTH
        elif not self._looks_left:
            self._after_last = min(self._after_last, present)
            return
        self._looks_left -= 1
        await asyncio.to_thread(self._trim)
        self._after_last = self._resident()
