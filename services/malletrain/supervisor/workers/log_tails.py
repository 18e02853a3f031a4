"""The last part of what workers have written since they began."""

from __future__ import annotations

import os
from pathlib import Path

from malletrain.common.error_texts import ErrorText, read_error
from malletrain.common.files import open_plain
from malletrain.common.job_folder import worker_log
from malletrain.supervisor.workers.slot import Slot

_TAIL_BYTES = 1 << 15


class LogTails:
    """Where in its log each worker began, so that what an earlier one wrote is not taken for its own."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._begins: dict[Slot, int] = {}

    def begin(self, slot: Slot) -> None:
        """The worker of a slot begins now."""
        try:
            self._begins[slot] = (self._logs / worker_log(*slot)).lstat().st_size
        except OSError:
            self._begins[slot] = 0

    def error_text(self, slot: Slot) -> ErrorText:
        """What the worker of a slot has said at its end; nothing if its log can't be read."""
        try:
            with open_plain(self._logs / worker_log(*slot)) as file:
                size = os.fstat(file.fileno()).st_size
                begin = self._begins.get(slot, 0)
                file.seek(max(begin if begin <= size else 0, size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ErrorText()
        return read_error(text)
