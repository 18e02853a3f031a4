"""Where the feeds of a fleet find each other: a file for each in a folder that only its owner can enter.

All nodes see the folders of jobs. So nobody has to be told of nodes that come and go, and a feed that is killed leaves
no more than a file, which the next one on its node replaces.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from malletrain.client.feeding.errors import FeedError
from malletrain.common import environment as env
from malletrain.common.files import open_plain, write_atomically
from malletrain.common.job_folder import FEED_CERTIFICATE_FILE
from malletrain.tls.names import feed_name

_MAX_BYTES = 4096
_MAX_FILES = 4096
_NAME_BYTES = 8
_FILE_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{16})\.json")
_OTHERS = 0o077


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How a feed finds those of other nodes, and proves who it is.

    Attributes:
        folder: Folder of the fleet's feeds, which all nodes see.
        certificate: File with the certificate of a job of the fleet.
        fleet: DNS name in certificates of the fleet's jobs.
        address: Address of this node, as others see it.
        name: Name of this feed: one for each node.
    """

    folder: str
    certificate: str
    fleet: str
    address: str
    name: str

    def as_json(self) -> dict[str, str]:
        """All fields by name."""
        return asdict(self)


def peer_settings(environ: Mapping[str, str], feeds: Path) -> PeerSettings | None:
    """Those of a worker; None: its feed shares with no other node.

    Args:
        environ: Environment of the worker.
        feeds: Folder in which trainings of this node find their feeds.
    """
    folder, fleet, job = (environ.get(name, "") for name in (env.FEED_PEERS, env.FLEET, env.JOB_DIR))
    if not (folder and fleet and job) or environ.get(env.FEED_ACROSS_NODES, "1") == "0":
        return None
    node = environ.get(env.NODE, "").partition("#")[0]
    name = hashlib.blake2b(f"{node}\0{feeds}".encode(), digest_size=_NAME_BYTES).hexdigest()
    certificate = str(Path(job) / FEED_CERTIFICATE_FILE)
    return PeerSettings(folder, certificate, feed_name(fleet), environ.get(env.NODE_ADDRESS, "127.0.0.1"), name)


class PeerAddress(NamedTuple):
    """Where a feed listens: a numeric address and a port."""

    host: str
    port: int


class PeerRegistry:
    """The files of the feeds of one fleet that prepare the same data."""

    def __init__(self, folder: Path, key: str, name: str) -> None:
        """Touch nothing yet.

        Args:
            key: What they prepare; see `source.FeedSource`.
            name: Name of this feed, 16 hexadecimal digits.
        """
        self._folder, self._key, self._name = folder, key, name
        self._path = folder / f"{key}.{name}.json"
        self._text = ""

    def register(self, address: PeerAddress) -> None:
        """Tell the others where this feed listens.

        Raises:
            OSError: it can't be written; PermissionError: others could enter the folder.
        """
        self._check()
        self._text = json.dumps(address._asdict())
        write_atomically(self._path, self._text, mode=0o600, exact=True, sync=False)

    def withdraw(self) -> None:
        """Remove what was registered, unless another feed of this node has done so since."""
        with contextlib.suppress(OSError):
            if self._path.read_text() == self._text:
                self._path.unlink()

    def others(self) -> dict[str, PeerAddress]:
        """Where the other feeds listen, by their names. What makes no sense is left out.

        Raises:
            OSError: the folder can't be read; PermissionError: others could enter it.
        """
        self._check()
        addresses: dict[str, PeerAddress] = {}
        with os.scandir(self._folder) as entries:
            for entry in islice(entries, _MAX_FILES):
                matched = _FILE_NAME.fullmatch(entry.name)
                if matched is None or matched[1] != self._key or matched[2] == self._name:
                    continue
                with contextlib.suppress(OSError, FeedError):
                    addresses[matched[2]] = _read(Path(entry.path))
        return addresses

    def _check(self) -> None:
        status = self._folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & _OTHERS:
            message = "expected a folder that only this account can enter"
            raise PermissionError(errno.EACCES, message, str(self._folder))


def parse_address(text: bytes) -> PeerAddress:
    """Read an address.

    Raises:
        FeedError: it is none.
    """
    try:
        content: Any = json.loads(text)
        host, port = content["host"], content["port"]
        if type(port) is not int or not 0 < port < 1 << 16:
            raise ValueError(f"port: expected a number, got {port!r}")
        return PeerAddress(str(ipaddress.ip_address(host)), port)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FeedError(f"address: expected host and port, got {text[:60]!r}") from error


def _read(path: Path) -> PeerAddress:
    with open_plain(path) as file:
        text = file.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise FeedError(f"{path}: expected at most {_MAX_BYTES} bytes")
    return parse_address(text)
