"""`python -m malletrain.supervisor.guardian JOB_ID SUPERVISOR`: ends what a supervisor leaves when it is killed.

The kernel ends the workers with their supervisor. What workers have started may have left their process group; the
guardian finds it by its environment. It waits on its standard input, which ends with the supervisor, however that ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from malletrain.supervisor.files import start_time
from malletrain.supervisor.processes import SUPERVISOR, sweep

_PAUSE_SECONDS = 0.02
_QUIET_ROUNDS = 5


class Guardian:
    """The supervisor's side: the guardian process lives as long as this object and a little longer."""

    def __init__(self, job_id: str) -> None:
        """Start it.

        Raises:
            OSError: it can't be started.
        """
        self.mark = f"{os.getpid()}:{start_time(os.getpid())}"
        # It is no process of the job to those who look for such.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "malletrain.supervisor.guardian", job_id, self.mark],
            stdin=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

    def close(self) -> None:
        """Let it end, and wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    """Wait for the end of the supervisor, then sweep until nothing is left."""
    job_id, mark = sys.argv[1:3]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    quiet = 0
    while quiet < _QUIET_ROUNDS:
        quiet = 0 if sweep(job_id, marks={SUPERVISOR: mark}) else quiet + 1
        time.sleep(_PAUSE_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
