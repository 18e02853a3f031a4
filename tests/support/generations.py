"""Generations of torch.distributed workers, as a launcher that restarts all of them at every rescale runs them.

Workers are forked from a process that has imported torch: a boot takes a tenth of a second, not two.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from torch.distributed import TCPStore

from malletrain.common.job_folder import SHARDED_FOLDER

_PR_SET_PDEATHSIG = 1
_PRELOADED = ["torch", "torch._dynamo", "torch.nn.parallel", "malletrain.client.elastic"]


def _work(script: str, arguments: Sequence[str], log: str, environment: Mapping[str, str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()  # as every worker: what it saves is told by its session
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environment)
    # The default of a process that is not forked like this one; else a DataLoader's process would run the script again.
    multiprocessing.set_start_method("fork", force=True)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


class Generation:
    """Workers of one scale, and the store in which they meet.

    Attributes:
        workers: Their processes, by rank.
    """

    def __init__(
        self,
        context: ForkServerContext,
        script: Path,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        scale: int,
    ) -> None:
        self._folder = folder
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared = {
            "WORLD_SIZE": scale,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": self._store.port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        common = {**environment, **{name: str(value) for name, value in shared.items()}}
        self.workers: list[ForkServerProcess] = []
        for rank in range(scale):
            own = {"RANK": str(rank), "LOCAL_RANK": "0", "MALLETRAIN_NODE": f"n{rank}"}
            log = str(folder / f"{rank}.log")
            self.workers.append(context.Process(target=_work, args=(str(script), arguments, log, common | own)))
            self.workers[-1].start()

    def signal(self, number: signal.Signals, *ranks: int) -> None:
        """Send a signal to these ranks, or to all."""
        for rank in ranks or range(len(self.workers)):
            pid = self.workers[rank].pid
            if pid is not None and self.workers[rank].is_alive():
                os.kill(pid, number)

    def join(self, timeout: float = 60.0) -> list[int | None]:
        """Wait for all; their exit codes, by rank."""
        for worker in self.workers:
            worker.join(timeout)
        return [worker.exitcode for worker in self.workers]

    def stop(self) -> list[int | None]:
        """Have all save and leave, as before a rescale; their exit codes."""
        self.signal(signal.SIGTERM)
        return self.join()

    def lose(self, *ranks: int) -> list[int | None]:
        """Kill workers, and have the lowest of the others save, and those whose state others do not have.

        The rest goes at once, as with RestartingGroup. Their exit codes.
        """
        self.signal(signal.SIGKILL, *ranks)
        survivors = [number for number in range(len(self.workers)) if number not in ranks]
        for number in survivors:
            saves = number == survivors[0] or (self._folder / SHARDED_FOLDER / str(self.workers[number].pid)).exists()
            self.signal(signal.SIGTERM if saves else signal.SIGKILL, number)
        return self.join()

    def close(self) -> None:
        """Leave no process."""
        self.signal(signal.SIGKILL)
        self.join(10)


class Launcher:
    """Starts one generation after the other, all with the same script and job.

    The process that they are forked from is one for all launchers: the first one's preloaded modules count.

    Attributes:
        folder: The job's folder.
        environment: What tells the workers of the job.
    """

    def __init__(
        self,
        script: Path,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        preloaded: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self._script = script
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*_PRELOADED, *preloaded])
        self.environment = {
            "MALLETRAIN_JOB_ID": f"test-{os.getpid()}",
            "MALLETRAIN_JOB_DIR": str(folder),
            "MALLETRAIN_MONITOR": "127.0.0.1:9",
            "MALLETRAIN_BACKEND": "torchrun",
            **(environment or {}),
        }

    @contextmanager
    def generation(self, scale: int, *arguments: str) -> Iterator[Generation]:
        """A generation of so many workers; none of them is left afterwards."""
        running = Generation(self._context, self._script, arguments, self.folder, self.environment, scale)
        try:
            yield running
        finally:
            running.close()
