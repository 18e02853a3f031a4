"""Tokens: JSON Web Tokens, signed with HMAC-SHA256 by the installation's key."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

import jwt

from malletrain.runtime.access.identity import CERTIFICATE_ROLES, HUMAN_ROLES, Identity, Role, UnauthenticatedError
from malletrain.runtime.clock import Clock

_ALGORITHM = "HS256"
_MAX_TOKEN_LENGTH = 4096
_MAX_NAME_LENGTH = 256
# Times are checked here, by the clock that was passed in.
_OPTIONS: Any = {
    "require": ["sub", "role", "jti", "iat", "exp"],
    **{f"verify_{claim}": False for claim in ("exp", "iat", "nbf", "aud", "iss")},
}


class Tokens:
    """Signs and verifies tokens. Its `repr` does not show the key."""

    def __init__(
        self,
        key: bytes,
        clock: Clock,
        leeway_seconds: float = 0.0,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """
        Args:
            key: The installation's secret, at least 32 bytes.
            clock: Wall clock.
            leeway_seconds: How far the clock of the signer may differ from it.
            new_id: Makes identifiers of tokens.
        """
        self._key = key
        self._clock = clock
        self._leeway = leeway_seconds
        self._new_id = new_id

    def sign(
        self, user: str, role: Role, lifespan_seconds: float, job_id: str = "", audience: str = ""
    ) -> tuple[str, Identity]:
        """A new token, and whom it identifies.

        Args:
            user: Name of the user or service.
            role: What it may do; not ANYBODY.
            lifespan_seconds: How long it is valid.
            job_id: The job, for the role JOB.
            audience: The service that takes it, for the role SERVICE.

        Raises:
            ValueError: no such token may exist.
        """
        now = self._clock.time()
        identity = Identity(user, role, self._new_id(), now, now + lifespan_seconds, job_id, audience)
        if not _is_sound(identity):
            raise ValueError(f"no token may exist for {identity}")
        claims = {"sub": user, "role": role.value, "jti": identity.token_id, "iat": now, "exp": identity.expires}
        if job_id:
            claims["job"] = job_id
        if audience:
            claims["aud"] = audience
        return jwt.encode(claims, self._key, _ALGORITHM), identity

    def verify(self, token: str) -> Identity:
        """Whom a token identifies.

        Raises:
            UnauthenticatedError: it is not one of ours, has expired, or is not valid yet.
        """
        if len(token) > _MAX_TOKEN_LENGTH:
            raise UnauthenticatedError("the token is not one of this installation")
        try:
            identity = _identity(jwt.decode(token, self._key, [_ALGORITHM], _OPTIONS))
        # What is not a token at all must not end in a traceback, which could show it.
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise UnauthenticatedError("the token is not one of this installation") from None
        self.check_times(identity)
        return identity

    def check_times(self, identity: Identity) -> None:
        """Refuse a token that has expired, or a person's that was issued in the future.

        Those of people can be revoked by the time at which they were issued. Those of jobs and services can't; a clock
        that is set back must not keep running trainings from reporting until it has caught up.

        Raises:
            UnauthenticatedError: it has.
        """
        now = self._clock.time()
        if now >= identity.expires + self._leeway:
            raise UnauthenticatedError("the token has expired")
        if identity.role in HUMAN_ROLES and now < identity.issued - self._leeway:
            raise UnauthenticatedError("the token is not valid yet: compare the clocks of the machines")


def _identity(claims: dict[str, Any]) -> Identity:
    texts = [claims["sub"], claims["role"], claims["jti"], claims.get("job", ""), claims.get("aud", "")]
    times = [claims["iat"], claims["exp"]]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("expected text")
    if not all(isinstance(time, int | float) and not isinstance(time, bool) for time in times):
        raise TypeError("expected numbers")
    user, role, token_id, job_id, audience = texts
    identity = Identity(user, Role(role), token_id, float(times[0]), float(times[1]), job_id, audience)
    if not _is_sound(identity):
        raise ValueError("a token that is never signed")
    return identity


def _is_sound(identity: Identity) -> bool:
    """Whether the parts of an identity fit each other."""
    return (
        identity.role not in (Role.ANYBODY, *CERTIFICATE_ROLES)
        and 0 < len(identity.user) <= _MAX_NAME_LENGTH
        and 0 < len(identity.token_id) <= _MAX_NAME_LENGTH
        and (identity.role is Role.JOB) == bool(identity.job_id)
        and (identity.role is Role.SERVICE) == bool(identity.audience)
        and math.isfinite(identity.issued)
        and math.isfinite(identity.expires)
        and identity.issued < identity.expires
    )
