"""Warnings on stderr, each kind once. Errors of the client never stop the training."""

from __future__ import annotations

import sys
import traceback


class WarnOnce:
    """Prints one warning of each kind."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def warn(self, kind: str, message: str) -> None:
        """Print a message unless one of its kind has been printed."""
        if kind in self._printed:
            return
        self._printed.add(kind)
        try:
            print(f"malletrain: {message}", file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            # stderr is closed or None: the message can't be shown.
            return

    def forget(self, kind: str) -> None:
        """Print the next message of a kind again: what it was about has passed."""
        self._printed.discard(kind)


def describe(error: Exception) -> str:
    """Type and message of an error, even if its message can't be converted to text."""
    return traceback.format_exception_only(error)[-1].strip()


def in_words(size: float) -> str:
    """A number of bytes, in MB below 1 GB."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
