"""SIGTERM as a flag: commit, save a checkpoint, end."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


class Termination:
    """Whether the launcher has asked this process to end."""

    def __init__(self) -> None:
        self.seen = False
        self._installed = False

    def install(self) -> bool:
        """Turn SIGTERM into the flag, in place of any handler before; True if it is so now.

        Only the main thread can: elsewhere nothing changes.
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
        """A forked data loader that shrugged off SIGTERM could not be ended by its parent."""
        self.seen = False
        if signal.getsignal(signal.SIGTERM) == self._note:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
