"""Links that let one browser in: what stands for a token in an address, for a short time. Pure but for the dice."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

LIFESPAN_S = 300.0
"""How long a link is good for."""
MAX_LINKS = 16
"""Links that may be unused at a time; the oldest of more is void."""


@dataclass(frozen=True)
class _Issued:
    token: str = field(repr=False)
    until: float


class OneTimeLinks:
    """Codes of links. Each stands for a token until it is used, or too old.

    So the token itself is in no address: browsers keep those in their history. Only hashes of codes are kept, so how
    long a look-up takes says nothing of a code.
    """

    def __init__(self, monotonic: Callable[[], float], make: Callable[[], str] = secrets.token_urlsafe) -> None:
        """No links yet.

        Args:
            monotonic: Monotonic clock in seconds.
            make: Makes a code that nobody can guess.
        """
        self._monotonic, self._make = monotonic, make
        self._issued: OrderedDict[bytes, _Issued] = OrderedDict()

    def new(self, token: str) -> str:
        """A new code.

        Args:
            token: What it stands for.
        """
        code = self._make()
        self._issued[_hash(code)] = _Issued(token, self._monotonic() + LIFESPAN_S)
        while len(self._issued) > MAX_LINKS:
            self._issued.popitem(last=False)
        return code

    def token(self, code: str) -> str:
        """What a code stands for, which stays unused; empty where it was used, is too old, or was never made."""
        found = self._issued.get(_hash(code))
        return found.token if found is not None and self._monotonic() < found.until else ""

    def use(self, code: str) -> str:
        """As `token`; from now on it stands for nothing."""
        token = self.token(code)
        self._issued.pop(_hash(code), None)
        return token


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogateescape")).digest()
