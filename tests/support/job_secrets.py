"""What a job proves with who it is, made by a test."""

from __future__ import annotations

from pathlib import Path

from malletrain.job_manager.launching.job_secrets import JobSecrets, SupervisorCertificates
from malletrain.runtime.access.tokens import Tokens
from tests.support.access import TOKENS


def job_secrets(shared: Path = Path("own.pem"), tokens: Tokens = TOKENS) -> JobSecrets:
    """Secrets of jobs that all run as this process does.

    Args:
        shared: Path of the certificate of all supervisors.
        tokens: Signs the tokens.
    """
    certificates = SupervisorCertificates(shared, lambda *_: "", 3600.0, lambda fleet_id: f"for {fleet_id}")
    return JobSecrets(tokens, 1e9, certificates)
