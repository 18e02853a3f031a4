"""The job that faults hit, one after the other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import grpc

from benchmarks.faulting.notes import Notes
from malletrain.common.job_folder import OUTCOME_FILE
from malletrain.v1 import supervisor_pb2
from tests.supervisor.running import Supervised, supervised
from tests.support.waiting import wait_until

PATIENCE_S = 180.0
"""For everything: a crowded machine needs a minute to boot three workers."""
_SIZE = 3
_MAX_HITS = 3
"""After six failures in ten minutes a supervisor leaves a host's worker alone; a host is replaced long before."""
_LEAVING_S = 10.0
_PAUSE_S = 0.1
_STOP_S = 5.0
_FOR_EVER = "1000000000"


class Subject:
    """A real training under a real supervisor, started again where it has ended.

    Attributes:
        hosts: The hosts that it was last told to use.
        restarts: How often its supervisor had to be started again, as JobManager does.
    """

    def __init__(self, folder: Path) -> None:
        """Start it on three hosts; returns at once."""
        self._folder = folder
        self._notes = Notes(folder)
        self._hits: Counter[str] = Counter()
        self._named = 0
        self._stack = ExitStack()
        self.hosts: list[str] = [self.new_host() for _ in range(_SIZE)]
        self.restarts = 0
        self._start()

    def _start(self) -> None:
        context = supervised(self._folder, *self.hosts, environment={"TEST_SAMPLES": _FOR_EVER})
        self.job: Supervised = self._stack.enter_context(context)

    def new_host(self) -> str:
        """A host name that was not used before."""
        self._named += 1
        return f"n{self._named}"

    # -- what is done to it ----------------------------------------------------------------------------------------

    def command(self, hosts: Sequence[str]) -> None:
        """Command hosts."""
        self.hosts = list(hosts)
        self.job.command(*hosts)

    def release(self, host: str, grace: float) -> None:
        """Take a host."""
        self.hosts = [other for other in self.hosts if other != host]
        self.job.release(host, grace=grace)

    def hit(self, host: str, number: signal.Signals) -> None:
        """Send a signal to a worker, and wait until it is gone: before that, all looks well."""
        pid = self.pids()[host]
        self._hits[host] += 1
        with contextlib.suppress(ProcessLookupError):  # it was quicker
            os.kill(pid, number)
        wait_until(lambda: self.pids().get(host) != pid, PATIENCE_S, f"the end of {host}'s worker")

    def kill_supervisor(self) -> None:
        """kill -9, and wait for the end of its workers."""
        os.kill(self.job.process.pid, signal.SIGKILL)
        self.job.process.wait()
        wait_until(lambda: not self.job.processes(), PATIENCE_S, "the workers' end")

    # -- what becomes of it ----------------------------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        """Process of the worker on each host; none where the supervisor has ended."""
        state = self._state()
        return {worker.host: worker.pid for worker in state.workers} if state else {}

    @property
    def rank_0(self) -> str:
        """The host of rank 0."""
        pid = self._notes.batches()[-1].pid
        return next(host for host, other in self.pids().items() if other == pid)

    @property
    def notes(self) -> Notes:
        """What it has done."""
        return self._notes

    @property
    def _ended(self) -> bool:
        return self.job.process.poll() is not None

    def wait_training(self) -> None:
        """Wait until it trains on the hosts it was told to; where it has failed, it is started again.

        Raises:
            AssertionError: it does not.
        """
        since = time.time()
        wait_until(self._confirmed, PATIENCE_S, f"a training on {self.hosts}")
        size = len(self.hosts)
        wait_until(
            lambda: any(batch.time > since and batch.size == size for batch in reversed(self._notes.batches()[-50:])),
            PATIENCE_S,
            f"a batch of {size} workers",
        )

    def _state(self) -> supervisor_pb2.SupervisorState | None:
        """The supervisor's; None where it has ended. One that is slow to answer is asked again."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._ended:
            try:
                return self.job.state()
            except grpc.RpcError as error:
                if time.monotonic() > deadline:
                    raise AssertionError(f"the supervisor does not answer: {error}") from error
                time.sleep(_PAUSE_S)
        return None

    def _confirmed(self) -> bool:
        state = self._state()
        if state is None:
            self.restart()
            return False
        return sorted(state.confirmed_hosts) == sorted(self.hosts)

    def restart(self) -> None:
        """Start a supervisor on the folder again, as JobManager does."""
        outcome = self._folder / OUTCOME_FILE
        if outcome.exists():
            print(f"  started again after {json.loads(outcome.read_text())}", file=sys.stderr)
        self.restarts += 1
        self._stack.close()
        self._start()

    def settle(self) -> None:
        """Get it back to three hosts, none of which has been hit often.

        Raises:
            AssertionError: it does not come about.
        """
        kept = [host for host in self.hosts if self._hits[host] < _MAX_HITS][:_SIZE]
        wanted = kept + [self.new_host() for _ in range(_SIZE - len(kept))]
        if wanted != self.hosts:
            self.command(wanted)
        self.wait_training()

    def strays(self) -> list[int]:
        """Processes of the job that are on none of its hosts, after some time to leave."""
        deadline = time.monotonic() + _LEAVING_S
        while (left := self._elsewhere(self.hosts)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _elsewhere(self, hosts: Iterable[str]) -> list[int]:
        own = {pid for host in hosts for pid in self.job.processes(host)}
        return [pid for pid in self.job.processes() if pid not in own]

    def stop(self) -> list[int]:
        """Have it stop as a user would; processes that are left.

        Raises:
            subprocess.TimeoutExpired: the supervisor does not end.
        """
        self.job.stop(grace=_STOP_S)
        self.job.process.wait(PATIENCE_S)
        return self.job.processes()

    def close(self) -> None:
        """Kill what is left of it."""
        self._stack.close()
