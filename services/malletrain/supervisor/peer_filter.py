"""Who may connect to what a job's workers meet at: neither Horovod's rendezvous nor torch's store asks for a secret."""

from __future__ import annotations

import os
from collections.abc import Callable, Set

from malletrain.common.connection_owner import Endpoint, connection_owner, is_loopback_address, plain_address


class PeerFilter:
    """Admits the nodes of one job, and on this machine the account that the job runs as. Use from any thread."""

    def __init__(
        self,
        addresses: Callable[[], Set[str]],
        owner_of: Callable[[Endpoint, Endpoint], int | None] = connection_owner,
        user_id: int | None = None,
    ) -> None:
        """Nothing is looked up yet.

        Args:
            addresses: Returns the IP addresses of the nodes on which the job has workers now.
            owner_of: Returns the user id of a peer on this machine.
            user_id: The account that is admitted on this machine; None: our own.
        """
        self._addresses = addresses
        self._owner_of = owner_of
        self._user_id = os.geteuid() if user_id is None else user_id

    def admits(self, peer: Endpoint, local: Endpoint) -> bool:
        """Whether a peer may connect.

        Args:
            peer: The peer's side of the connection.
            local: Our side.
        """
        address = plain_address(peer[0])
        if is_loopback_address(address) or address == plain_address(local[0]):
            return self._owner_of(peer[:2], local[:2]) == self._user_id
        return address in self._addresses()
