"""The function `log_metrics`: writes what a script logs of its training to the ring, without a system call."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from typing import SupportsFloat, SupportsIndex

from malletrain.client.ring import MAX_NAME_BYTES, NO_STEP, Ring, put_metric
from malletrain.client.warn_once import WarnOnce, describe

MAX_METRICS = 32
"""Most names of metrics of a job; Monitor keeps no more."""
_MAX_STEP = 2**60


class MetricLog:
    """The metrics of this process, and where they are written."""

    def __init__(self, ring: Callable[[], Ring | None], clock: Callable[[], int], warnings: WarnOnce) -> None:
        """Without any.

        Args:
            ring: The ring to write to; None: this process does not report.
            clock: Nanoseconds since the epoch.
        """
        self._ring = ring
        self._clock = clock
        self._warnings = warnings
        self._names: dict[str, bytes] = {}
        self._numbers = itertools.count(1)

    def log(self, metrics: Mapping[str, SupportsFloat], step: SupportsIndex | None = None) -> None:
        """Log values of the training, such as its loss: the job's page, `malletrain metrics` and Python show them.

        Only calls at rank 0 count, so every worker may call it. Outside MalleTrain it does nothing. It never raises,
        and makes no system call. What is no finite number is left out, with one warning on stderr.

        A value is what `float()` makes of it, only at rank 0. For a tensor on a GPU, `float()` waits until the GPU has
        computed it: log such values every so many steps.

        Args:
            metrics: Value by name. A name has 1 to 64 bytes, all printable; a job has at most 32 names.
            step: The script's own count of steps, 0 to 2**60. None: the samples that the job has done.
        """
        try:
            ring = self._ring()
            if ring is None:
                return
            own_step = NO_STEP if step is None else _checked_step(step)
            now = self._clock()
            for name, given in metrics.items():
                self._put(ring, now, own_step, name, given)
        except Exception as error:  # noqa: BLE001 - whatever happens here, the training continues
            self._warnings.warn("metrics", f"log_metrics(): {describe(error)}")

    def forget(self) -> None:
        """There is a new ring, or another process: numbers begin anew."""
        self._names = {}
        self._numbers = itertools.count(1)

    def _put(self, ring: Ring, now: int, step: int, name: str, given: SupportsFloat) -> None:
        try:
            value = float(given)
        except Exception as error:  # noqa: BLE001 - others of the same call may be right
            self._warnings.warn("metric", f"log_metrics(): {name!r:.80} is left out: {describe(error)}")
            return
        if not math.isfinite(value):
            message = f"log_metrics(): {name!r:.80} is left out: expected a finite number, got {value}"
            self._warnings.warn("infinite metric", message)
            return
        encoded = self._names.get(name) or self._new_name(name)
        if encoded:
            # The number is taken at once, so that two threads never use the same one.
            put_metric(ring, next(self._numbers), now, step, value, encoded)

    def _new_name(self, name: str) -> bytes:
        """The name in UTF-8; empty: it can't be one."""
        encoded = name.encode(errors="replace") if isinstance(name, str) else b""
        if not 0 < len(encoded) <= MAX_NAME_BYTES or not name.isprintable():
            expected = f"expected a name of 1 to {MAX_NAME_BYTES} bytes, all printable, got"
            self._warnings.warn("metric name", f"log_metrics(): {expected} {name!r:.80}: it is left out")
            return b""
        if len(self._names) >= MAX_METRICS:
            message = f"log_metrics(): a job has at most {MAX_METRICS} metrics: {name!r} and later ones are left out"
            self._warnings.warn("many metrics", message)
            return b""
        self._names[name] = encoded
        return encoded


def numbers_of(values: Mapping[str, object]) -> dict[str, float]:
    """Those of a framework's logged values that are finite numbers: it logs texts and figures, too."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _checked_step(step: SupportsIndex) -> int:
    number = operator.index(step)
    if not 0 <= number <= _MAX_STEP:
        raise ValueError(f"step: expected 0 to {_MAX_STEP}, got {number}")
    return number
