"""The trainer's word that it is done: `completed.json` in the job's folder."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat, SupportsIndex

from malletrain.client.complaints import Complaints, describe

FILE_NAME = "completed.json"


def write_completion(
    directory: Path,
    metrics: Mapping[str, SupportsFloat] | None,
    samples: SupportsIndex | None,
    unix_seconds: float,
    complaints: Complaints,
) -> None:
    """Write `completed.json` at once or not at all; if it is there already, it stays as it is.

    Metrics that are no finite numbers are left out, and said on stderr: that a training is done must not get lost over
    a figure.

    Raises:
        OSError: the file can't be written.
    """
    path = directory / FILE_NAME
    if path.exists():
        return
    content = {
        "samples": _count(samples, complaints),
        "metrics": _finite(metrics, complaints),
        "unix_seconds": unix_seconds,
    }
    temporary = directory / f".{FILE_NAME}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_directory(directory)


def _count(samples: SupportsIndex | None, complaints: Complaints) -> int | None:
    if samples is None:
        return None
    try:
        count = operator.index(samples)
    except Exception as error:  # noqa: BLE001 - a user's object may raise anything, and the completion must be written
        complaints.say(
            "done samples",
            f"done(): samples: expected a whole number, got {type(samples).__name__} ({describe(error)})",
        )
        return None
    if count < 0:
        complaints.say("done samples", f"done(): samples: expected at least 0, got {count}")
        return None
    return count


def _finite(metrics: Mapping[str, SupportsFloat] | None, complaints: Complaints) -> dict[str, float]:
    try:
        entries = list((metrics or {}).items())
    except Exception as error:  # noqa: BLE001 - as above
        complaints.say(
            "done metrics", f"done(): metrics: expected a mapping, got {type(metrics).__name__} ({describe(error)})"
        )
        return {}
    finite: dict[str, float] = {}
    for name, value in entries:
        try:
            number = float(value)
            key = str(name)
        except Exception as error:  # noqa: BLE001 - as above
            complaints.say("done metric", f"done(): metrics: expected names and numbers ({describe(error)})")
            continue
        if math.isfinite(number):
            finite[key] = number
        else:
            complaints.say(f"done {key}", f"done(): metrics[{key!r}]: expected a finite number, got {number}")
    return finite


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
