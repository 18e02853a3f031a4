"""Identity for tests that run one service: one key for the service, its fake peers and the test, all in one process.

Every server in such a test checks its calls as in production; the test calls as a service, which may call everything.
"""

from __future__ import annotations

from pathlib import Path

from malletrain.runtime.access.credentials import Credential, FixedToken, ServiceCredential
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.installation import Installation
from malletrain.runtime.access.interceptor import AccessInterceptor, TokenChecker
from malletrain.runtime.access.revocation import RevocationFile
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.settings_file import SERVICES

TOKENS = Tokens(b"0123456789abcdef" * 2, SystemClock(), 30.0)
CREDENTIAL = ServiceCredential(TOKENS, "test", SystemClock())
TESTED = "tested"
"""What a test calls a service that it reaches by itself."""
_NOTHING_REVOKED = RevocationFile(Path("/nonexistent"), SystemClock())


def checked() -> AccessInterceptor:
    """What checks the calls of a server."""
    return AccessInterceptor(TokenChecker(TOKENS, _NOTHING_REVOKED, *SERVICES, TESTED), open_reflection=True)


def credential_of(user: str, role: Role, job_id: str = "") -> Credential:
    """The credential of somebody else, for an hour."""
    audience = TESTED if role is Role.SERVICE else ""
    return FixedToken(TOKENS.sign(user, role, 3600.0, job_id, audience)[0])


def installation(settings: Settings) -> Installation:
    """An installation with this key."""
    return Installation(settings, TOKENS, RevocationFile(settings.state_dir, SystemClock()), SystemClock())
