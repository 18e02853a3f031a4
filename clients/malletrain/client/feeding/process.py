"""The program of a feed: `python -P -m malletrain.client.feeding.process LISTENING FOLDER NAME`, started by a training.

It reads what it is to prepare from its standard input, as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from malletrain.client.feeding.errors import FeedError
from malletrain.client.feeding.limits import FeedLimits
from malletrain.client.feeding.peer_registry import PeerSettings
from malletrain.client.feeding.private_folder import PrivateFolder
from malletrain.client.feeding.seeding import Preparation
from malletrain.client.feeding.server import FeedServer, refuse_all
from malletrain.client.feeding.sizing import memory_path
from malletrain.client.feeding.source import FeedSource, load_dataset
from malletrain.client.warn_once import describe


def main() -> int:
    """Serve until no training is connected any more; 1 if samples can't be shared."""
    descriptor, path, name = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    content: dict[str, Any] = json.load(sys.stdin)
    source, limits = FeedSource(**content["source"]), FeedLimits(**content["limits"])
    listening = socket.socket(fileno=descriptor)
    folder = PrivateFolder(path)
    sys.path[:] = source.path
    _import_generators()
    try:
        dataset = load_dataset(source)
    except Exception as error:
        with folder.locked():
            folder.remove(name)
        refuse_all(listening, FeedError(f"{source.spec}: {describe(error)}", final=True))
        raise
    preparation = Preparation(dataset, source.seed, source.size)
    peers = PeerSettings(**content["peers"]) if content.get("peers") else None
    memory = memory_path(os.environ, source.key)
    server = FeedServer(listening, source, preparation, limits, content["workers"], peers, memory)

    def end(signum: int, frame: object) -> None:
        del signum, frame
        server.asked_to_end = True

    signal.signal(signal.SIGTERM, end)

    def leave() -> bool:
        """Give up the name, unless somebody who comes now holds the folder."""
        with folder.locked() as alone:
            if alone:
                folder.remove(name)
            return alone

    try:
        server.run(leave)
    except FeedError as error:
        leave()
        print(f"feed: {error}", file=sys.stderr)
        return 1
    return 0


def _import_generators() -> None:
    """Import what has random numbers, before processes are forked: only what is imported is seeded for a sample."""
    for name in ("numpy", "torch"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
