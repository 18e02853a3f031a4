"""Structured logs: one line per event; text on a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import TextIO, cast

import structlog


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
