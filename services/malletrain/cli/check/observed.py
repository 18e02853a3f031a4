"""Reads what `malletrain.client.observe` has noted in a job's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from malletrain.cli.check.observations import Step

_MOST_BYTES = 64 << 20


class ObservedSteps:
    """The steps of a job's workers, read as they are written."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet; the folder need not exist."""
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._steps: list[Step] = []

    def read(self) -> list[Step]:
        """All steps so far, in order of time."""
        found = len(self._steps)
        for path in sorted(self._folder.glob("*.jsonl")):
            self._steps += self._new_in(path)
        if len(self._steps) > found:
            self._steps.sort(key=lambda step: step.seconds)
        return self._steps

    def _new_in(self, path: Path) -> list[Step]:
        start = self._read.get(path, 0)
        if start >= _MOST_BYTES:
            return []
        with path.open("rb") as file:
            file.seek(start)
            whole = file.read(_MOST_BYTES).rpartition(b"\n")[0]
        if not whole:
            return []
        self._read[path] = start + len(whole) + 1
        return [_step(json.loads(line)) for line in whole.splitlines()]


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
    )
