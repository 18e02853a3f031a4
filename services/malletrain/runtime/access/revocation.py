"""Tokens that are no longer valid although they have not expired: a file that all services read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from malletrain.common.files import write_atomically
from malletrain.runtime.access.identity import HUMAN_ROLES, Identity
from malletrain.runtime.access.settings import MAX_LIFESPAN_SECONDS
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError, UnavailableError

REVOKED_FILE = "revoked.json"
_LOOK_SECONDS = 0.25
_KEPT_SECONDS = MAX_LIFESPAN_SECONDS + 86400.0
"""The lifespan of any token, and a day for clocks that differ."""
_MAX_ENTRIES = 100_000


@dataclass(frozen=True)
class RevokedTokens:
    """What has been revoked. Pure.

    Attributes:
        tokens: When each token was revoked, by its identifier, in seconds since the epoch.
        users: When all tokens of a user were last revoked, by the user's name, in seconds since the epoch.
    """

    tokens: Mapping[str, float] = field(default_factory=dict)
    users: Mapping[str, float] = field(default_factory=dict)

    def contains(self, identity: Identity) -> bool:
        """Whether the token of an identity is revoked. Names of services and jobs are no users."""
        if identity.token_id in self.tokens:
            return True
        return identity.role in HUMAN_ROLES and identity.issued <= self.users.get(identity.user, float("-inf"))

    def with_token(self, token_id: str, now: float) -> RevokedTokens:
        """A token is revoked."""
        return RevokedTokens({**self.tokens, token_id: now}, self.users)

    def with_user(self, user: str, now: float) -> RevokedTokens:
        """All tokens are revoked that a user was given until now."""
        return RevokedTokens(self.tokens, {**self.users, user: now})

    def without_expired(self, now: float) -> RevokedTokens:
        """The entries that may still concern a token: no token lives longer than MAX_LIFESPAN_SECONDS."""
        since = now - _KEPT_SECONDS

        def newer(part: Mapping[str, float]) -> dict[str, float]:
            return {name: at for name, at in part.items() if at > since}

        return RevokedTokens(newer(self.tokens), newer(self.users))

    def __len__(self) -> int:
        return len(self.tokens) + len(self.users)


class RevocationFile:
    """The file `keys/revoked.json`. One process writes it; all notice a change within a quarter of a second."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        """Read the file, if there is one.

        Raises:
            InvalidInputError: it can't be read.
        """
        self._path = folder / REVOKED_FILE
        self._clock = clock
        self._revoked = RevokedTokens()
        self._version: object = None
        self._look_at = 0.0
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise InvalidInputError(str(self._path), f"a list of revoked tokens ({error})") from error

    def contains(self, identity: Identity) -> bool:
        """Whether the token of an identity is revoked."""
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            try:
                self._read()
            except (OSError, ValueError) as error:
                structlog.get_logger(__name__).error("revocations not read, the last ones hold", error=str(error))
        return self._revoked.contains(identity)

    def revoke_token(self, token_id: str) -> None:
        """Revoke one token.

        Raises:
            UnavailableError: this can't be written.
        """
        self._write(self._revoked.with_token(token_id, self._clock.time()))

    def revoke_user(self, user: str) -> None:
        """Revoke all tokens that a user was given until now.

        Raises:
            UnavailableError: this can't be written.
        """
        self._write(self._revoked.with_user(user, self._clock.time()))

    def _write(self, revoked: RevokedTokens) -> None:
        current = revoked.without_expired(self._clock.time())
        if len(current) > _MAX_ENTRIES:
            raise UnavailableError(
                f"{_MAX_ENTRIES} tokens are revoked already; replace {self._path.with_name('token.key')} instead"
            )
        text = json.dumps({"tokens": dict(current.tokens), "users": dict(current.users)}, indent=1)
        try:
            write_atomically(self._path, text, mode=0o600)
            self._read()
        except (OSError, ValueError) as error:
            raise UnavailableError(f"the revocation can't be stored: {error}") from error

    def _read(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._revoked, self._version = RevokedTokens(), None
            return
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self._version:
            self._revoked = _parse(json.loads(self._path.read_text(encoding="utf-8")))
            self._version = version


def _parse(content: Any) -> RevokedTokens:
    if not isinstance(content, dict):
        raise ValueError("expected an object")
    parts = [content.get(name, {}) for name in ("tokens", "users")]
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError("expected the objects tokens and users")
    return RevokedTokens(*({str(name): float(at) for name, at in part.items()} for part in parts))
