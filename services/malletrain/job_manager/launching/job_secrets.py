"""What a job's processes prove with who they are: files in the job's folder that only its account can read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import structlog

from malletrain.common.accounts import Account
from malletrain.common.job_folder import CERTIFICATE_FILE, FEED_CERTIFICATE_FILE, TOKEN_FILE
from malletrain.common.user_threads import UserThreads
from malletrain.job_manager.launching.folder import JobFolder
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.errors import InvalidInputError

_LIFESPAN_SECONDS = 2 * 86400.0
_RENEWAL_SECONDS = 3600.0
"""Both are renewed so often that what a process has just read is valid for almost its whole lifespan."""


@dataclass(frozen=True)
class SupervisorCertificates:
    """The certificates that supervisors show agents.

    Attributes:
        shared: File with that of all supervisors that run as we do.
        issue: Makes one for the supervisor of one job, which runs as an account: private key, certificate and that of
            the CA, in PEM. May raise InvalidInputError.
        lifespan_seconds: How long one is valid.
        issue_to_fleet: Makes one by which the feeds of a fleet know each other; None: none is made.
    """

    shared: Path
    issue: Callable[[str, Account], str]
    lifespan_seconds: float
    issue_to_fleet: Callable[[str], str] | None = None


class JobSecrets:
    """Writes the tokens of jobs, which a sidecar reads whenever it connects to Monitor, and their certificates.

    A job that runs as its owner gets a certificate of its own, by which agents know as whom to run its workers. The
    certificate of all supervisors would let its holder run anything as anybody.
    """

    def __init__(self, tokens: Tokens, max_lifespan_seconds: float, certificates: SupervisorCertificates) -> None:
        """
        Args:
            tokens: Signs them.
            max_lifespan_seconds: No token may live longer.
            certificates: The certificates of supervisors.
        """
        self._tokens = tokens
        self._lifespan = min(_LIFESPAN_SECONDS, max_lifespan_seconds)
        self._certificates = certificates
        self._threads = UserThreads(at_once=1)

    def write(self, job_id: str, folder: JobFolder, sharing_fleet: str = "") -> None:
        """Write a new token to a job's folder, and new certificates if it needs them.

        Args:
            job_id: The job.
            sharing_fleet: Its fleet, if feeds of its nodes share with each other; else empty.

        Raises:
            OSError: they can't be written.
            InvalidInputError: the CA can't be used.
        """
        token, _ = self._tokens.sign(job_id, Role.JOB, self._lifespan, job_id)
        folder.write_secret(TOKEN_FILE, token + "\n")
        if folder.account is not None:
            folder.write_secret(CERTIFICATE_FILE, self._certificates.issue(job_id, folder.account))
        if sharing_fleet and self._certificates.issue_to_fleet is not None:
            folder.write_secret(FEED_CERTIFICATE_FILE, self._certificates.issue_to_fleet(sharing_fleet))

    def certificate_file(self, folder: JobFolder) -> Path:
        """The certificate file of a job's supervisor."""
        return self._certificates.shared if folder.account is None else folder.path / CERTIFICATE_FILE

    async def keep(self, jobs: Callable[[], Iterable[tuple[str, JobFolder, str]]]) -> None:
        """Renew what the jobs that have been started have, now and every hour, until cancelled.

        Args:
            jobs: Identifiers, folders and sharing fleets (see `write`) of the jobs that are not in a final state.
        """
        log = structlog.get_logger(__name__)
        while True:
            for job_id, folder, fleet in list(jobs()):

                def renew(job_id: str = job_id, folder: JobFolder = folder, fleet: str = fleet) -> None:
                    if folder.is_launched:
                        self.write(job_id, folder, fleet)

                try:
                    await self._threads.run("" if folder.account is None else folder.account.name, renew)
                except (OSError, InvalidInputError) as error:
                    log.error("job's token not renewed", job=job_id, error=str(error))
            shortest = min(self._lifespan, self._certificates.lifespan_seconds)
            await asyncio.sleep(min(_RENEWAL_SECONDS, shortest / 4))
