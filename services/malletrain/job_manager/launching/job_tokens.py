"""The token with which a job's trainer reports: a file in the job's folder that only the job's account can read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog

from malletrain.common.files import write_atomically
from malletrain.common.job_folder import LAUNCH_FILE, TOKEN_FILE
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.tokens import Tokens

_LIFESPAN_SECONDS = 2 * 86400.0
_RENEWAL_SECONDS = 3600.0
"""Tokens are renewed so often that one which a sidecar has just read is valid for almost their whole lifespan."""


class JobTokens:
    """Writes the tokens of jobs. A sidecar reads the file whenever it connects to Monitor."""

    def __init__(self, tokens: Tokens, longest_lifespan_seconds: float) -> None:
        """Write nothing yet.

        Args:
            tokens: Signs them.
            longest_lifespan_seconds: No token may live longer.
        """
        self._tokens = tokens
        self._lifespan = min(_LIFESPAN_SECONDS, longest_lifespan_seconds)

    def write(self, job_id: str, folder: Path) -> None:
        """Write a new token to a job's folder.

        Raises:
            OSError: it can't be written.
        """
        token, _ = self._tokens.sign(job_id, Role.JOB, self._lifespan, job_id)
        write_atomically(folder / TOKEN_FILE, token + "\n", mode=0o600, sync=False)

    async def keep(self, jobs: Callable[[], Iterable[tuple[str, Path]]]) -> None:
        """Renew the tokens of the jobs that have been started, now and every hour, until cancelled.

        Args:
            jobs: Identifiers and folders of the jobs that are not in a final state.
        """
        log = structlog.get_logger(__name__)
        while True:
            for job_id, folder in list(jobs()):
                try:
                    if (folder / LAUNCH_FILE).exists():
                        self.write(job_id, folder)
                except OSError as error:
                    log.error("job's token not renewed", job=job_id, error=error.strerror)
            await asyncio.sleep(min(_RENEWAL_SECONDS, self._lifespan / 4))
