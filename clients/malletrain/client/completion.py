"""Writes `completed.json` in the job's folder, by which a trainer says that the training is complete."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat, SupportsIndex

from malletrain.client.warn_once import WarnOnce, describe
from malletrain.common.files import write_atomically
from malletrain.common.job_folder import COMPLETION_FILE


def write_completion(
    directory: Path,
    metrics: Mapping[str, SupportsFloat] | None,
    samples: SupportsIndex | None,
    unix_seconds: float,
    warnings: WarnOnce,
) -> None:
    """Write `completed.json` atomically. An existing file is kept.

    Metrics that are not finite numbers are left out with a warning: a wrong metric must not keep the file from being
    written.

    Args:
        directory: The job's folder.
        metrics: Names and numbers; None for none.
        samples: The job's sample counter; None if not known.
        unix_seconds: Time of completion in seconds since the epoch.
        warnings: Prints what is wrong with the arguments.

    Raises:
        OSError: the file can't be written.
    """
    path = directory / COMPLETION_FILE
    if path.exists():
        return
    content = {
        "samples": _count(samples, warnings),
        "metrics": _finite(metrics, warnings),
        "unix_seconds": unix_seconds,
    }
    write_atomically(path, json.dumps(content))


def _count(samples: SupportsIndex | None, warnings: WarnOnce) -> int | None:
    if samples is None:
        return None
    try:
        count = operator.index(samples)
    except Exception as error:  # noqa: BLE001 - a user's object may raise anything; the file must be written
        warnings.warn(
            "done samples",
            f"done(): samples: expected a whole number, got {type(samples).__name__} ({describe(error)})",
        )
        return None
    if count < 0:
        warnings.warn("done samples", f"done(): samples: expected at least 0, got {count}")
        return None
    return count


def _finite(metrics: Mapping[str, SupportsFloat] | None, warnings: WarnOnce) -> dict[str, float]:
    try:
        entries = list((metrics or {}).items())
    except Exception as error:  # noqa: BLE001 - as above
        warnings.warn(
            "done metrics", f"done(): metrics: expected a mapping, got {type(metrics).__name__} ({describe(error)})"
        )
        return {}
    finite: dict[str, float] = {}
    for name, value in entries:
        try:
            number = float(value)
            key = str(name)
        except Exception as error:  # noqa: BLE001 - as above
            warnings.warn("done metric", f"done(): metrics: expected names and numbers ({describe(error)})")
            continue
        if math.isfinite(number):
            finite[key] = number
        else:
            warnings.warn(f"done {key}", f"done(): metrics[{key!r}]: expected a finite number, got {number}")
    return finite
