"""As whom an agent runs the workers of a supervisor: what the supervisor's certificate says."""

from __future__ import annotations

import os
from dataclasses import dataclass

from malletrain.common.accounts import Account, AccountError, account_of
from malletrain.tls.names import PeerJob


@dataclass(frozen=True)
class JobOwner:
    """Whose workers a session is for.

    Attributes:
        job_id: The only job for which the supervisor may speak.
        account: As whom its workers run; None: as the agent.
    """

    job_id: str
    account: Account | None


def owner_of(job: PeerJob | None) -> JobOwner | None:
    """Whose workers a supervisor may start.

    Returns:
        None if its certificate is that of all supervisors, which JobManager gives to none of a user.

    Raises:
        AccountError: this node does not know the user, or the agent may not start anything as that user.
    """
    if job is None:
        return None
    if job.user_id == 0:
        raise AccountError("the certificate names no user")
    if job.user_id == os.geteuid():
        return JobOwner(job.job_id, None)
    if os.geteuid() != 0:
        raise AccountError(f"the agent is not root, and can't run workers as user id {job.user_id}")
    return JobOwner(job.job_id, account_of(job.user_id))
