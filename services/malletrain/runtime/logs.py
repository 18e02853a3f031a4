"""Structured logs: one line per event; lines about refused calls go to a file of their own.

A caller that is refused can call again at no cost, for ever. The file of a service is bounded: beside it
is one copy, and what is older is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO, cast

import structlog

from malletrain.common.files import make_private_folder


class LogStream:
    """A stream that loses lines rather than fail: on a full disk, a service goes on without its log.

    Once lines can be written again, it says how many were lost.
    """

    def __init__(self, inner: TextIO) -> None:
        self._inner = inner
        self._lost = 0

    def write(self, text: str) -> int:
        """Write text, with its line break."""
        try:
            if self._lost:
                self._inner.write(f'{{"event": "lines of the log were lost", "lines": {self._lost}}}\n')
                self._inner.flush()
                self._lost = 0
            self._inner.write(text)
            self._inner.flush()
        except OSError:
            self._lost += 1
        return len(text)

    def flush(self) -> None:
        """Nothing: each text is written at once."""


def configure_logging(service: str, level: str = "info") -> None:
    """Write log events to standard error, each with the name of the service; they are lost where that fails.

    Args:
        service: Name of the process, e.g. "monitor".
        level: Lowest level that is logged: debug, info, warning or error.
    """
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, LogStream(sys.stderr))),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(service=service)


MAX_BYTES = 8 << 20
_MODE = 0o600


class RotatedFile:
    """A file to which texts are appended, and which is renamed to `NAME.1` when it is full. It has one writer."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """
        Args:
            path: Its path. The folder is made where it is missing.
            max_bytes: How long it gets.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._descriptor: int | None = None
        self._size = 0

    def write(self, text: str) -> int:
        """Append a text.

        Raises:
            OSError: it can't be written; the next one is tried again.
        """
        content = text.encode(errors="backslashreplace")
        try:
            if self._descriptor is not None and self._size and self._size + len(content) > self._max_bytes:
                self.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._size += os.write(self._open(), content)
        except OSError:
            self.close()
            raise
        return len(text)

    def flush(self) -> None:
        """Nothing: each text is written at once."""

    def close(self) -> None:
        """Close it; the next text opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is None:
            make_private_folder(self._path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags, _MODE)
            self._size = os.fstat(self._descriptor).st_size
        return self._descriptor


_apart: Any = None


def refusal_file(state_dir: Path, service: str) -> Path:
    """The file with the refusals of a service."""
    return state_dir / "logs" / f"{service}.refused.log"


def keep_refusals_apart(path: Path | None) -> None:
    """Write lines about refusals to a file from now on; they are lost where that fails.

    Args:
        path: The file; None: they go to the log of the service, as before the first call.
    """
    global _apart
    if path is None:
        _apart = None
        return
    _apart = structlog.wrap_logger(
        structlog.WriteLogger(cast(TextIO, LogStream(cast(TextIO, RotatedFile(path))))),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ],
    )


def refusal_logger(name: str, usual: Any = None) -> Any:
    """The logger for a line about refusals.

    Args:
        name: Name of the logger where refusals are not kept apart.
        usual: The logger that is used then; its context goes along in any case. None: one of that name.
    """
    if _apart is None:
        return structlog.get_logger(name) if usual is None else usual
    return _apart if usual is None else _apart.bind(**structlog.get_context(usual))


def log_failure(error: BaseException) -> None:
    """Log an error with its traceback."""
    structlog.get_logger(__name__).error("a task has failed", error=repr(error), exc_info=error)
