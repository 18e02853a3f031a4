"""Horovod's rendezvous over HTTP for the nodes of one job alone. What strangers send is not answered or unpickled."""

from __future__ import annotations

import base64
import binascii
import io
import logging
import pickle
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.elastic.rendezvous import GET_RANK_AND_SIZE, PUT_WORKER_ADDRESSES
from horovod.runner.http.http_server import BAD_REQUEST, RendezvousHandler, RendezvousHTTPServer

from malletrain.common.connection_owner import Endpoint, plain_address
from malletrain.supervisor.workers.slot import Slot


class NotPlainError(ValueError):
    """The data are not pickled, or contain more than numbers, texts, lists and tables."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every class and function: unpickling calls them."""
        raise NotPlainError(f"expected plain data, got {module}.{name}")


def load_plain_base64(encoded: bytes) -> Any:
    """Read data that Horovod's workers have pickled.

    Args:
        encoded: A pickle in base64.

    Raises:
        NotPlainError: it is none, or contains anything but plain data.
    """
    try:
        return _PlainUnpickler(io.BytesIO(base64.b64decode(encoded, validate=True))).load()
    except NotPlainError:
        raise
    except (binascii.Error, pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError) as error:
        raise NotPlainError(f"expected a pickle in base64: {error}") from error
    except (AttributeError, MemoryError, OverflowError) as error:
        raise NotPlainError(f"expected plain data: {error}") from error


WorkerAddresses = dict[str, list[tuple[str, int]]]
"""Where a worker takes notices: addresses and ports, by interface."""
_FIRST_SCOPE, _FIRST_KEY = "global", "rank_"
"""The key that a worker writes first when it connects to the others: it contains its rank."""
_MAX_BYTES = 1 << 20
_MAX_KEY_LENGTH = 256
_GPU_MARK = "~"
"""Not part of any node's name, and kept as it is in an address."""

log = logging.getLogger(__name__)


class Rendezvous(Protocol):
    """What the rendezvous server asks the group of workers, and tells it."""

    def place_of(self, slot: Slot) -> SlotInfo:
        """Wait for the rank of a worker that has come back."""

    def show_up(self, rank: int) -> None:
        """A member of the newest group has begun to connect."""

    def register(self, slot: Slot, addresses: WorkerAddresses, key: bytes) -> None:
        """A worker takes part, and takes notices at these addresses from whoever has the key."""


class GuardedRendezvousServer(RendezvousHTTPServer):  # type: ignore[misc]  # Horovod has no types
    """Horovod's server, which looks at a peer's address before it reads from it."""

    daemon_threads = True  # a worker that waits for its place must not keep this process from ending

    def __init__(self, address: str, rendezvous: Rendezvous, admits: Callable[[Endpoint, Endpoint], bool]) -> None:
        """Listen on any free port of an address. Horovod's own start() would listen on every interface.

        Args:
            rendezvous: What is asked and told.
            admits: Whether a peer may connect, given its side and ours.
        """
        self._admits = admits
        super().__init__((address, 0), _handler(rendezvous), 0)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether the peer is a node of the job."""
        admitted = self._admits(client_address, request.getsockname())
        if not admitted:
            log.warning("refused a connection from %s to the rendezvous", client_address[0])
        return admitted

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in a line that a request could not be handled."""
        del request
        log.warning("a request of %s to the rendezvous failed", client_address[0], exc_info=True)


def _handler(rendezvous: Rendezvous) -> type[RendezvousHandler]:
    class Handler(RendezvousHandler):  # type: ignore[misc]  # Horovod has no types
        def do_HEAD(self) -> None:  # noqa: N802  # the library's name; it would tell of files in the working directory
            self.send_status_code(BAD_REQUEST)

        def do_PUT(self) -> None:  # noqa: N802  # the library's name
            length = self.headers.get("Content-Length", "")
            fits = length.isascii() and length.isdigit() and int(length) <= _MAX_BYTES
            if not fits or len(self.path) > _MAX_KEY_LENGTH:
                self.send_status_code(BAD_REQUEST)
                return
            try:
                super().do_PUT()
            except ValueError as error:
                log.warning("%s put something that can't be used: %s", self.client_address[0], error)
                self.send_status_code(BAD_REQUEST)

        def _get_value(self, scope: str, key: str) -> Any:
            if scope != GET_RANK_AND_SIZE:
                return super()._get_value(scope, key)
            return rendezvous.place_of(_slot(key)).to_response_string().encode("ascii")

        def _put_value(self, scope: str, key: str, value: bytes) -> None:
            if scope == PUT_WORKER_ADDRESSES:
                rendezvous.register(_slot(key), *worker_addresses(value, self.client_address[0]))
            super()._put_value(scope, key, value)
            if scope == _FIRST_SCOPE and key.startswith(_FIRST_KEY):
                rendezvous.show_up(int(key.removeprefix(_FIRST_KEY)))

    return Handler


def worker_addresses(value: bytes, peer: str) -> tuple[WorkerAddresses, bytes]:
    """Addresses at which a worker takes notices, and the key by which it verifies their sender.

    Args:
        value: What it has put. Only ports are taken from it: the address is the one that it has connected from.
        peer: That address.

    Raises:
        NotPlainError: it has another form.
    """
    content = load_plain_base64(value)
    try:
        addresses_by_interface, key = content
        ports = {int(port) for addresses in addresses_by_interface.values() for _, port in addresses}
    except (AttributeError, TypeError, ValueError) as error:
        raise NotPlainError(f"expected addresses by interface and a key: {error}") from error
    if not isinstance(key, bytes) or not ports or not all(0 < port < 1 << 16 for port in ports):
        raise NotPlainError("expected ports and a key")
    return {"peer": [(plain_address(peer), port) for port in sorted(ports)]}, key


def _slot(key: str) -> Slot:
    host, _, index = key.rpartition(":")
    return Slot(host_name(host), int(index))


def world_name(host: str) -> str:
    """What Horovod calls a host. Workers ask for it by an address in which # would begin what is not sent."""
    return host.replace("#", _GPU_MARK)


def host_name(name: str) -> str:
    """The host that Horovod calls by a name."""
    return name.replace(_GPU_MARK, "#")
