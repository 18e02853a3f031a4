"""Runs an example that asks itself to leave once it has trained with so many samples, as a rescale would.

`python stopping.py EXAMPLE STOP_AT ARGUMENTS...`; with 0 it trains to its end.
"""

from __future__ import annotations

import runpy
import signal
import sys

from malletrain.client.training import Training


def stop_at(samples: int) -> None:
    """Have rank 0 be asked to leave after the batch that reaches so many samples."""
    count = Training._count

    def counting(self: Training) -> None:
        before = self.samples
        count(self)
        if self.rank == 0 and before < samples <= self.samples:
            signal.raise_signal(signal.SIGTERM)

    Training._count = counting  # type: ignore[method-assign]


if __name__ == "__main__":
    _, example, end, *arguments = sys.argv
    if int(end):
        stop_at(int(end))
    sys.argv = [example, *arguments]
    runpy.run_path(example, run_name="__main__")
