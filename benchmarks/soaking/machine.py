"""What faults need of the machine: a small disk that can be filled and frozen, and a clock that can be stepped."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_FREEZE, _THAW = 0xC0045877, 0xC0045878
"""FIFREEZE and FITHAW of linux/fs.h: a frozen file system lets writers wait."""
_DISK_BYTES = 256 << 20
_FROZEN_S, _FREE_S = 0.25, 0.05
_BLOCK = 1 << 20


@dataclass
class SmallDisk:
    """A file system of its own in a file.

    Attributes:
        folder: Where it is mounted.
    """

    folder: Path
    _full: int = 0
    _slow: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _fast: threading.Event = field(default_factory=threading.Event)
    _slowing: threading.Thread | None = None

    def fill(self) -> None:
        """Leave no byte free."""
        with self._lock:
            self._full += 1
            filler = os.open(self.folder / "filler", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            try:
                for size in (_BLOCK, 4096, 1):
                    with suppress(OSError):  # it is full
                        while True:
                            os.write(filler, bytes(size))
            finally:
                os.close(filler)

    def empty(self) -> None:
        """Give the space back."""
        with self._lock:
            self._full -= 1
            if not self._full:
                (self.folder / "filler").unlink(missing_ok=True)

    def slow_down(self) -> None:
        """Let each writer wait for up to a quarter of a second, again and again."""
        with self._lock:
            self._slow += 1
            if self._slow == 1:
                self._fast.clear()
                self._slowing = threading.Thread(target=self._freeze_and_thaw)
                self._slowing.start()

    def speed_up(self) -> None:
        """As before."""
        with self._lock:
            self._slow -= 1
            if self._slow:
                return
            self._fast.set()
        if self._slowing is not None:
            self._slowing.join()

    def _freeze_and_thaw(self) -> None:
        place = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            while not self._fast.is_set():
                fcntl.ioctl(place, _FREEZE, 0)
                try:
                    self._fast.wait(_FROZEN_S)
                finally:
                    fcntl.ioctl(place, _THAW, 0)
                self._fast.wait(_FREE_S)
        finally:
            os.close(place)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk | str]:
    """Mount a new file system of 256 MiB; yields why not where that can't be done."""
    image, place = folder / "disk.img", folder / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        yield "only root can mount a disk of its own"
        return
    if not (shutil.which("mkfs.ext4") and shutil.which("mount")):
        yield "there is no mkfs.ext4 or no mount"
        return
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    for command in (["mkfs.ext4", "-q", "-m", "0", str(image)], ["mount", "-o", "loop", str(image), str(place)]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            yield f"{command[0]}: {done.stderr.strip()}"
            return
    try:
        yield SmallDisk(place)
    finally:
        # Lazily: a process that is about to end may still have a file open.
        subprocess.run(["umount", "--lazy", str(place)], check=False)


@dataclass(frozen=True)
class SteppedClock:
    """The wall clock of all processes that have its environment; the monotonic clock goes on.

    Attributes:
        file: Where its offset is.
        library: What shows it to processes.
    """

    file: Path
    library: Path

    def step(self, offset_s: float) -> None:
        """From now on, the clock is this far from the machine's."""
        with self.file.open("r+b") as file:
            file.write(struct.pack("=q", round(offset_s * 1e9)))

    @property
    def environment(self) -> Mapping[str, str]:
        """What processes need to see it."""
        return {"LD_PRELOAD": str(self.library), "SOAK_CLOCK": str(self.file)}


def stepped_clock(folder: Path) -> SteppedClock | str:
    """Make a clock that can be stepped, with its files in a folder; why there is none where it can't be compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return "there is no C compiler"
    library, source = folder / "stepped_clock.so", Path(__file__).with_name("stepped_clock.c")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"cc: {done.stderr.strip()[:200]}"
    clock = SteppedClock(folder / "clock", library)
    clock.file.write_bytes(bytes(8))
    return clock
