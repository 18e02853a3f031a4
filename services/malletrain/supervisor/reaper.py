"""`python -m malletrain.supervisor.reaper JOB_ID SUPERVISOR`: kills what a supervisor leaves behind when it ends.

The kernel kills the workers when their supervisor ends. Processes that they have started may have left their process
group: the reaper finds those by their environment. It waits for the end of its standard input, which is a pipe from the
supervisor, so that it notices every end of the supervisor.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from malletrain.common import environment as env
from malletrain.common.child_process import spawn
from malletrain.common.processes import this_process
from malletrain.common.worker_process import kill_workers

_PAUSE_SECONDS = 0.02
_QUIET_ROUNDS = 5


class Reaper:
    """The reaper process of this supervisor. It ends shortly after the supervisor.

    Attributes:
        mark: Value of the variable by which the reaper finds the supervisor's workers.
    """

    def __init__(self, job_id: str) -> None:
        """Starts the process.

        Raises:
            OSError: it can't be started.
        """
        own = this_process()
        self.mark = f"{own.pid}:{own.start_time}"
        # Without the variables by which the processes of a job are found: it must not be killed as one of them.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(env.PREFIX)}
        command = (sys.executable, "-P", "-m", "malletrain.supervisor.reaper", job_id, self.mark)
        reading, self._pipe = os.pipe()
        try:
            self._process = spawn(command, environment, stdin=reading, stdout=1, stderr=2, new_session=True)
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(reading)

    @property
    def pid(self) -> int:
        """Process id of the reaper."""
        return self._process.pid

    def close(self) -> None:
        """Let it do its work, and wait for its end."""
        os.close(self._pipe)
        self._process.wait()


def main() -> int:
    """Wait for the supervisor's end, then kill until nothing is left."""
    job_id, mark = sys.argv[1:3]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    quiet = 0
    while quiet < _QUIET_ROUNDS:
        quiet = 0 if kill_workers(job_id, marks={env.SUPERVISOR: mark}) else quiet + 1
        time.sleep(_PAUSE_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
