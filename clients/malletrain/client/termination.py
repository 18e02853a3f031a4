"""Turns SIGTERM into a flag."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class Termination:
    """Whether the launcher has asked this process to end.

    Attributes:
        seen: Whether SIGTERM has been received since `install`.
    """

    def __init__(self) -> None:
        self.seen = False
        self._installed = False

    def install(self) -> bool:
        """Replace the handler of SIGTERM by one that sets the flag. Only the main thread can do that.

        Returns:
            Whether that handler is installed now.
        """
        if threading.current_thread() is not threading.main_thread():
            return self._installed
        signal.signal(signal.SIGTERM, self._note)
        if not self._installed:
            self._installed = True
            os.register_at_fork(after_in_child=self._restore)
        return True

    def _note(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self.seen = True

    def _restore(self) -> None:
        """Restore the default handler in a forked child: a data loader has to end at SIGTERM."""
        self.seen = False
        if signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
