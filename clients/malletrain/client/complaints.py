"""What goes wrong in the client is said once on stderr and never gets in the way of training."""

from __future__ import annotations

import sys
import traceback


class Complaints:
    """Says each kind of trouble once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, kind: str, message: str) -> None:
        """Print a message unless one of its kind has been printed."""
        if kind in self._said:
            return
        self._said.add(kind)
        try:
            print(f"malletrain: {message}", file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            # stderr is closed or None: there is nobody left to tell.
            return


def describe(error: Exception) -> str:
    """Type and message of an error, even of one that can't be turned into text."""
    return traceback.format_exception_only(error)[-1].strip()
