"""HiGHS as an independent reference in tests."""

from __future__ import annotations

import highspy


def reference_solver() -> highspy.Highs:
    """A silent solver with one thread, as the services use it.

    HiGHS keeps its number of threads per process: another number makes every later solver of the process refuse to run.
    """
    model = highspy.Highs()
    model.silent()
    model.setOptionValue("threads", 1)
    return model
