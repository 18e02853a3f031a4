"""What a service or the dashboard does when a task has failed without which it can go on."""

from __future__ import annotations

import structlog


def log_failure(error: BaseException) -> None:
    """Log an error with its traceback."""
    structlog.get_logger(__name__).error("a task has failed", error=repr(error), exc_info=error)
