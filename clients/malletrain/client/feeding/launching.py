"""Finds the feed of a data set on this machine, or starts it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.peer_registry import PeerSettings
from malletrain.client.feeding.private_folder import PrivateFolder
from malletrain.client.feeding.source import FeedSource
from malletrain.common import environment as env
from malletrain.common.files import open_log
from malletrain.common.job_folder import FEED_LOG, LOGS_FOLDER


@dataclass
class FeedLauncher:
    """Finds or starts the feed of one source.

    Attributes:
        source: What the feed prepares.
        folder: Where the account's feeds are found.
        limits: Limits of a feed that is started.
        workers: Processes of a feed that is started.
        peers: How a feed that is started finds those of other nodes; None: it shares with none.
        process: The feed that this process has started last; None if it has started none.
    """

    source: FeedSource
    folder: Path
    limits: FeedLimits
    workers: int
    peers: PeerSettings | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def connect(self) -> socket.socket | None:
        """Connect to the feed, after it has been started if need be; None while somebody else is about to.

        Raises:
            OSError: the folder is not private, or there can be no feed.
        """
        if self.process is not None:
            self.process.poll()  # collects one that has ended
        folder = PrivateFolder(self.folder)
        name = f"{self.source.key}.sock"
        try:
            found = folder.connect(name)
            if found is not None:
                return found
            with folder.locked() as alone:
                if not alone:
                    return None
                if (found := folder.connect(name)) is None:
                    self._start(folder, name)
                    found = folder.connect(name)
                return found
        finally:
            folder.close()

    def _start(self, folder: PrivateFolder, name: str) -> None:
        """Start the feed. It inherits the environment, and so ends when the node is taken from this process's job."""
        listening = folder.listen(name)
        try:
            program = [sys.executable, "-P", "-m", "malletrain.client.feeding.process"]
            with self._open_log() as log:
                # A session of its own: it serves other trainings when this one has ended.
                self.process = subprocess.Popen(
                    [*program, str(listening.fileno()), str(self.folder), name],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(listening.fileno(),),
                    start_new_session=True,
                )
        except BaseException:
            folder.remove(name)
            raise
        finally:
            listening.close()
        assert self.process.stdin is not None
        peers = None if self.peers is None else self.peers.as_json()
        limits = self.limits.as_json()
        content = {"source": self.source.as_json(), "limits": limits, "workers": self.workers, "peers": peers}
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:  # it has ended: that is found out later
            stdin.write(json.dumps(content).encode())

    def _open_log(self) -> BinaryIO:
        """A file for the feed's output: not this process's own, which would keep a pipe of its launcher open."""
        return open_log(log_path(os.environ, self.folder))


def log_path(environ: Mapping[str, str], folder: Path) -> Path:
    """Where a feed writes its messages: in the logs of the job that starts it, elsewhere in the folder of the feeds."""
    job = environ.get(env.JOB_DIR)
    if job:
        with contextlib.suppress(OSError):
            logs = Path(job) / LOGS_FOLDER
            logs.mkdir(parents=True, exist_ok=True)
            return logs / FEED_LOG
    return folder / FEED_LOG
