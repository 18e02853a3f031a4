"""Stock `torchrun` (c10d rendezvous), one agent per host; the store is this process's, as no host is sure to stay."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch.distributed as dist

from benchmarks.rescaling.launching import ENVIRONMENT, TRAINERS, LauncherError
from benchmarks.rescaling.processes import MARK, sweep

_QUICK = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
# Without it a growth ends the job in torch 2.13: the newcomer waits for a store of an agent that is not the host.
_NEEDED = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class TorchrunJob:
    """The agents of one job."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self._folder = folder
        self._options = options
        self._agents: dict[str, subprocess.Popen[bytes]] = {}

    def set_hosts(self, hosts: Sequence[str]) -> None:
        """Start agents on new hosts; those on others are told to end."""
        for host in [host for host in self._agents if host not in hosts]:
            self._agents.pop(host).send_signal(signal.SIGTERM)
        for host in hosts:
            if host not in self._agents:
                self._agents[host] = self._agent(host)

    def _agent(self, host: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "torch.distributed.run", *self._options, "--log-dir", str(self._folder / host)]
        environment: Mapping[str, str] = {**os.environ, **ENVIRONMENT, **_NEEDED, MARK: str(self._folder)}
        with (self._folder / "launcher.log").open("ab") as log:
            return subprocess.Popen(
                [*command, str(TRAINERS / "checkpointed.py")],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def check(self) -> None:
        """See `Running`."""
        for host, agent in self._agents.items():
            if agent.poll() is not None:
                raise LauncherError(f"the agent of {host} ended with {agent.returncode}")

    def is_settled(self) -> bool:
        """See `Running`."""
        return True

    def close(self) -> None:
        """Kill all agents."""
        for agent in self._agents.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()


class Torchrun:
    """See `Launcher`."""

    hosts: Sequence[str] = ("h1", "h2", "h3", "h4")

    def __init__(self, name: str, quick: bool) -> None:
        """Describe it.

        Args:
            name: Its name in the results.
            quick: Whether its time-outs are shortened as far as it goes.
        """
        self.name = name
        self._settings = f",{_QUICK}" if quick else ""

    @contextmanager
    def start(self, folder: Path, hosts: Sequence[str]) -> Iterator[TorchrunJob]:
        """See `Launcher`."""
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        options = ["--nnodes", f"1:{len(self.hosts)}", "--nproc-per-node", "1", "--max-restarts", "1000"]
        options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-id", folder.name]
        options += ["--rdzv-conf", f"is_host=false{self._settings}", "--local-addr", "127.0.0.1"]
        job = TorchrunJob(folder, options)
        with ExitStack() as stack:
            stack.callback(sweep, folder)
            stack.callback(job.close)
            job.set_hosts(hosts)
            yield job
        del store
