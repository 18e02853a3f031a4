"""Verifies the token of a call, at the cost of a look-up for a token that was seen before."""

from __future__ import annotations

from collections.abc import Iterable

from malletrain.runtime.access.credentials import HEADER, SCHEME
from malletrain.runtime.access.identity import Identity, Role, UnauthenticatedError
from malletrain.runtime.access.revocation import RevocationFile
from malletrain.runtime.access.tokens import Tokens

_MAX_KNOWN = 1024
_REMEDY = (
    "show a token: set MALLETRAIN_TOKEN or MALLETRAIN_TOKEN_FILE, or send the header "
    "`authorization: Bearer TOKEN`; `malletrain token` prints one"
)


class TokenChecker:
    """Remembers the tokens that it has verified; whether they have expired or were revoked is checked at every call."""

    def __init__(self, tokens: Tokens, revoked: RevocationFile, *services: str) -> None:
        """Know no token yet.

        Args:
            tokens: Verifies them.
            revoked: Those that are no longer valid.
            services: Names of the service that is called: tokens that services show to others are no good here.
        """
        self._tokens = tokens
        self._revoked = revoked
        self._services = services
        self._known: dict[str, Identity] = {}

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> Identity:
        """Who makes a call.

        Args:
            metadata: Metadata of the call.

        Raises:
            UnauthenticatedError: it shows no token, or one that is not valid; the message says what to do.
        """
        found = [value for name, value in metadata if name == HEADER]
        if not found:
            raise UnauthenticatedError(f"nobody knows who calls: {_REMEDY}")
        value = found[0]
        if len(found) > 1 or not isinstance(value, str) or not value.startswith(SCHEME):
            raise UnauthenticatedError(f"expected one header `authorization: Bearer TOKEN`: {_REMEDY}")
        try:
            return self._verified(value.removeprefix(SCHEME))
        except UnauthenticatedError as error:
            raise UnauthenticatedError(f"{error}: {_REMEDY}") from None

    def _verified(self, token: str) -> Identity:
        identity = self._known.get(token)
        if identity is None:
            identity = self._tokens.verify(token)
            if len(self._known) >= _MAX_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[token] = identity
        else:
            self._tokens.check_times(identity)
        if identity.role is Role.SERVICE and identity.audience not in self._services:
            raise UnauthenticatedError(f"the token is for {identity.audience}, and this is {', '.join(self._services)}")
        if self._revoked.contains(identity):
            raise UnauthenticatedError("the token has been revoked")
        return identity
