"""Links that let one browser in: what stands for a token in an address, for a short time. Pure but for the dice."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

LIFESPAN_S = 300.0
"""How long a link is good for."""
MAX_LINKS = 16
"""Links that may be unused at a time; of more, the oldest is no longer valid."""
MAX_LOGGED_REFUSALS = 8
"""Refusals of one link that are logged: others can ask as often as they like."""


@dataclass
class _Issued:
    token: str = field(repr=False)
    until: float
    browser: bytes = b""
    refusals: int = 0


class OneTimeLinks:
    """Codes of links. Each stands for a token until it is used, or too old, and is for the browser that opens it first.

    So the token itself is in no address: browsers keep those in their history. Other accounts may read a code, too, in
    the command line of the browser that opens it; only the first browser gets the mark that is needed to use it. Only
    hashes of codes and marks are kept, so how long a look-up takes says nothing of them.
    """

    def __init__(self, monotonic: Callable[[], float], make: Callable[[], str] = secrets.token_urlsafe) -> None:
        """
        Args:
            monotonic: Monotonic clock in seconds.
            make: Makes a code, or a mark, that nobody can guess.
        """
        self._monotonic, self._make = monotonic, make
        self._issued: OrderedDict[bytes, _Issued] = OrderedDict()

    def new(self, token: str) -> str:
        """Make a code for a link.

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
        issued = self._valid(code)
        return issued.token if issued is not None else ""

    def open(self, code: str, mark: str) -> str:
        """A browser opens a link: the first one gets a mark, and from now on the code is for it alone.

        Args:
            code: Code of the link.
            mark: What the browser was given before; empty: nothing.

        Returns:
            The browser's mark; empty where the code stands for nothing, or is for another browser.
        """
        issued = self._valid(code)
        if issued is None:
            return ""
        if issued.browser:
            return mark if _is(mark, issued.browser) else ""
        made = self._make()
        issued.browser = _hash(made)
        return made

    def is_for(self, code: str, mark: str) -> bool:
        """Whether a code still stands for something, and is for the browser with a mark.

        Args:
            code: Code of the link.
            mark: As `open` gave it.
        """
        issued = self._valid(code)
        return issued is not None and bool(issued.browser) and _is(mark, issued.browser)

    def use(self, code: str, mark: str) -> str:
        """As `token`, for the browser with a mark only; from now on the code stands for nothing.

        Args:
            code: Code of the link.
            mark: As `open` gave it.
        """
        return self._issued.pop(_hash(code)).token if self.is_for(code, mark) else ""

    def refuse(self, code: str) -> bool:
        """Count that a link was refused to somebody; returns whether this is to be logged: of each link a few times."""
        issued = self._valid(code)
        if issued is None:
            return False
        issued.refusals += 1
        return issued.refusals <= MAX_LOGGED_REFUSALS

    def _valid(self, code: str) -> _Issued | None:
        issued = self._issued.get(_hash(code))
        return issued if issued is not None and self._monotonic() < issued.until else None


def _is(text: str, hashed: bytes) -> bool:
    return hmac.compare_digest(_hash(text), hashed)


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogateescape")).digest()
