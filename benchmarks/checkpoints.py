"""Saving and loading a large state: `python benchmarks/checkpoints.py [--gib 1 4]`, from the repository's root.

The same state, a model with two moments of Adam, is saved and loaded in these ways:

    torch.save        to a file, as most scripts do; brought to disk by fsync
    dcp.save          torch.distributed.checkpoint of one process, with its defaults
    dcp.async_save    the same in the background
    ours              `CheckpointManager.save`: a copy in memory, written in the background
    ours, at a stop   `CheckpointManager.save_and_wait`: no copy

Each saves in a process of its own and loads in another, so that the memory of one does not help the next. Measured are
how long the training waits for a save, how long it takes until it is on disk, the bytes written, the most memory beside
the state (RssAnon, looked at every millisecond), and how long a load takes. Before that the kernel is asked to drop the
files from its cache (POSIX_FADV_DONTNEED, which it need not do; a virtual disk may have a cache of its own). All that
is in one run, way by way in each round; the table has medians, and ratios to torch.save. `--ways` chooses some of them,
for a size of which no copy fits in memory. `docs/performance.md` has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.arguments import positive

WAYS = ("torch.save", "dcp.save", "dcp.async_save", "ours", "ours, at a stop")
COPYING = ("dcp.async_save", "ours")
"""Ways that need as much memory again as the state."""
GIB = 1 << 30
_TENSOR_BYTES = 16 << 20
_FIGURES = {
    "waits": "training waits (s)",
    "on_disk": "on disk after (s)",
    "load": "load (s)",
    "bytes": "written (GiB)",
    "memory": "memory beside the state (GiB)",
}


def make_state(size: int) -> dict[str, Any]:
    """Weights and two moments each, of random bits, in tensors of 16 MiB; `size` is in bytes."""
    import torch

    def tensors(count: int) -> dict[str, torch.Tensor]:
        return {f"layer {number}": torch.randn(_TENSOR_BYTES // 4) for number in range(count)}

    count = max(1, size // _TENSOR_BYTES // 3)
    return {"model": tensors(count), "optimizer": {name: tensors(count) for name in ("first", "second")}, "samples": 1}


def anonymous_bytes() -> int:
    """Memory of this process that no file is behind."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class PeakMemory:
    """The most memory that this process has had since it was made, beside what it had then."""

    def __init__(self) -> None:
        self._before = self._most = anonymous_bytes()
        self._ended = threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.001):
            self._most = max(self._most, anonymous_bytes())

    def end(self) -> int:
        """Look no more; the most bytes."""
        self._ended.set()
        self._watching.join()
        return self._most - self._before


def saver(way: str, folder: Path) -> Callable[[dict[str, Any]], Callable[[], None]]:
    """What saves a state in one of the ways, and returns what waits until it is on disk."""
    import torch
    import torch.distributed.checkpoint as dcp

    from malletrain.client.checkpoint_manager import CheckpointManager

    manager = CheckpointManager(folder, 30.0)

    def save(state: dict[str, Any]) -> Callable[[], None]:
        if way == "torch.save":
            torch.save(state, folder / "state.pt")
            return lambda: to_disk(folder)
        if way == "dcp.save":
            dcp.save(state, checkpoint_id=folder)
            return lambda: None
        if way == "dcp.async_save":
            found: Any = dcp.async_save(state, checkpoint_id=folder)
            return lambda: found.result()
        if way == "ours":
            manager.save(1, lambda: state)
            return manager.wait
        if not manager.save_and_wait(1, lambda: state):
            raise OSError("the state is not on disk")
        return lambda: None

    return save


def load(way: str, folder: Path, size: int) -> float:
    """Load a state in one of the ways; how long that took, in seconds."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    from malletrain.client.checkpoint_manager import CheckpointManager

    if way.startswith("dcp."):
        # It fills what is there.
        state = make_state(size)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    began = time.monotonic()
    if way == "torch.save":
        state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    elif way.startswith("dcp."):
        dcp.load(state, checkpoint_id=folder)
    else:
        loaded = CheckpointManager(folder, 30.0).load()
        assert loaded is not None
        state = loaded
    took = time.monotonic() - began
    assert state["samples"] == 1
    return took


def to_disk(folder: Path) -> None:
    """Bring all files in a folder to disk."""
    for path in files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def drop_from_cache(folder: Path) -> None:
    """Ask the kernel to forget what it has of the files in a folder."""
    for path in files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def files(folder: Path) -> list[Path]:
    """All files in a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


def measure_save(way: str, folder: Path, size: int) -> dict[str, float]:
    """Save a state, in this process."""
    import torch
    import torch.distributed as dist

    # What is needed once only, such as for imports and threads, does not count.
    small = folder / "small"
    small.mkdir(parents=True)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    saver(way, small)({"model": torch.ones(4), "optimizer": {}, "samples": 0})()
    shutil.rmtree(small)
    state, save = make_state(size), saver(way, folder)
    memory = PeakMemory()
    began = time.monotonic()
    wait = save(state)
    waited = time.monotonic() - began
    wait()
    on_disk = time.monotonic() - began
    written = sum(path.stat().st_size for path in files(folder))
    return {"waits": waited, "on_disk": on_disk, "bytes": written / GIB, "memory": memory.end() / GIB}


def in_process(task: str, way: str, folder: Path, size: int) -> dict[str, float]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--task", task, "--ways", way, "--folder", str(folder), "--bytes", str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(way: str, above: Path, size: int) -> dict[str, float]:
    """Save and load once; what is written is removed."""
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-", dir=above))
    try:
        found = in_process("save", way, folder, size)
        drop_from_cache(folder)
        return found | in_process("load", way, folder, size)
    finally:
        shutil.rmtree(folder)


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(found[name] for found in rounds) for name in _FIGURES}


def table(size: int, found: dict[str, dict[str, float]]) -> str:
    """The medians of one size, with ratios to torch.save in brackets, as Markdown."""
    base = found.get("torch.save")

    def cells(way: str) -> Iterable[str]:
        for name in _FIGURES:
            value = found[way][name]
            ratio = base is not None and way != "torch.save" and name in ("waits", "on_disk", "load") and base[name]
            yield f"{value:.2f} ({value / base[name]:.2f})" if base is not None and ratio else f"{value:.2f}"

    lines = [f"| {size / GIB:g} GiB | " + " | ".join(_FIGURES.values()) + " |"]
    lines.append("| --- |" + " ---: |" * len(_FIGURES))
    lines += [f"| {way} | {' | '.join(cells(way))} |" for way in found]
    return "\n".join(lines)


def check_memory(size: int, ways: Iterable[str]) -> None:
    """See that there is memory for the ways.

    Raises:
        SystemExit: there is not. It says so.
    """
    from malletrain.client.available_memory import available_memory

    needed = size * (2 if set(ways) & set(COPYING) else 1) + 2 * GIB
    available = available_memory()
    if available is not None and available < needed:
        raise SystemExit(f"{needed / GIB:.1f} GiB of memory are needed, and {available / GIB:.1f} GiB are available")


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=positive, nargs="+", default=[1], help="sizes of the state")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where it is written")
    parser.add_argument("--task", choices=("save", "load"), help=argparse.SUPPRESS)
    parser.add_argument("--bytes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task == "save":
        print(json.dumps(measure_save(options.ways[0], options.folder, options.bytes)))
        return
    if options.task == "load":
        print(json.dumps({"load": load(options.ways[0], options.folder, options.bytes)}))
        return
    for size in [gib * GIB for gib in options.gib]:
        check_memory(size, options.ways)
        rounds: dict[str, list[dict[str, float]]] = {way: [] for way in options.ways}
        for number in range(options.rounds):
            for way in options.ways:
                rounds[way].append(measure(way, options.folder, size))
                print(f"round {number + 1}, {way}: {rounds[way][-1]}", file=sys.stderr, flush=True)
        print(table(size, {way: medians(found) for way, found in rounds.items()}), flush=True)


if __name__ == "__main__":
    main()
