"""Reads what `malletrain.client.observe` has noted in a job's folder."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from malletrain.cli.check.observations import Step

_MAX_BYTES = 64 << 20


class Observed:
    """What a job's workers did, read as it is written.

    Attributes:
        overwritten: Moments and paths of files with a state that were written over.
        saves: Moments and paths of files that states were saved in.
        evaluated: Moments at which an evaluation made passes, each with whether the script says when it evaluates.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet; the folder need not exist."""
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._steps: list[Step] = []
        self.overwritten: list[tuple[float, str]] = []
        self.saves: list[tuple[float, str]] = []
        self.evaluated: list[tuple[float, bool]] = []

    def read(self) -> list[Step]:
        """All steps so far, in order of time."""
        found = len(self._steps)
        for path in sorted(self._folder.glob("*.jsonl")):
            for note in self._new_in(path):
                self._take(note)
        if len(self._steps) > found:
            self._steps.sort(key=lambda step: step.seconds)
        return self._steps

    def _take(self, note: dict[str, Any]) -> None:
        event = note.get("event")
        if event is None:
            self._steps.append(_step(note))
        elif event == "overwritten":
            self.overwritten.append((note["seconds"], note["path"]))
        elif event == "saved":
            self.saves.append((note["seconds"], note["path"]))
        else:
            self.evaluated.append((note["seconds"], note["said"]))

    def _new_in(self, path: Path) -> list[dict[str, Any]]:
        start = self._read.get(path, 0)
        if start >= _MAX_BYTES:
            return []
        with path.open("rb") as file:
            file.seek(start)
            whole = file.read(_MAX_BYTES).rpartition(b"\n")[0]
        if not whole:
            return []
        self._read[path] = start + len(whole) + 1
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):  # two threads may have written at once
                found.append(json.loads(line))
        return found


def _step(note: dict[str, Any]) -> Step:
    return Step(
        rank=note["rank"],
        workers=note["workers"],
        seconds=note["seconds"],
        size=note["size"],
        rows=tuple(note["rows"]),
        loss=note["loss"],
        rates=tuple(note["rates"]),
        before=note["before"],
        after=note["after"],
        sharded=note["sharded"],
        process=note["pid"],
        together=note["together"],
        reported=note["reported"],
        schedule=tuple(note["schedule"]) if note["schedule"] else None,
        base_rates=tuple(note["base_rates"]),
        heeds_stop=note["heeds_stop"],
    )
