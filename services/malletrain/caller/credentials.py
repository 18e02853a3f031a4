"""The credential that a caller shows to the services."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from malletrain.caller.settings import InstallationView
from malletrain.runtime.access.credentials import Credential, FixedToken
from malletrain.runtime.access.keys import owner_file
from malletrain.runtime.channel import DEADLINE_SECONDS, open_blocking_channel
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.messages import unix_seconds
from malletrain.runtime.peer import Peer
from malletrain.v1 import access_pb2

if TYPE_CHECKING:
    from malletrain.runtime.access.munge import Munge

TOKEN_VARIABLE = "MALLETRAIN_TOKEN"
TOKEN_FILE_VARIABLE = "MALLETRAIN_TOKEN_FILE"
_MAX_TOKEN_LENGTH = 4096
_TOKEN = re.compile(r"[A-Za-z0-9._-]+\Z")


class OwnerTokenReader:
    """The owner's token, read whenever it is shown: the services renew it. Without a file that we may read: none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def token(self) -> str:
        """The token; empty where there is none for us."""
        try:
            return self._path.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""


class RenewedToken:
    """The token of a file that somebody else renews; read whenever it is shown."""

    def __init__(self, path: Path) -> None:
        """Reads the file, so that a missing one is told at once.

        Raises:
            InvalidInputError: there is no token.
        """
        self._path = path
        self._last = _check_token(_read(path), TOKEN_FILE_VARIABLE)

    def token(self) -> str:
        """The token; the last one that was good where the file has none now."""
        with suppress(InvalidInputError):
            self._last = _check_token(_read(self._path), TOKEN_FILE_VARIABLE)
        return self._last


class MungeToken:
    """A token that JobManager gives in exchange for a MUNGE credential; another one once half of its time is over."""

    def __init__(self, munge: Munge, job_manager: Peer, *, needed: bool, monotonic: Callable[[], float]) -> None:
        """
        Args:
            munge: Commands of MUNGE.
            job_manager: JobManager.
            needed: Whether it is an error that munged does not answer.
            monotonic: Monotonic clock in seconds.
        """
        self._munge = munge
        self._job_manager = job_manager
        self._needed = needed
        self._monotonic = monotonic
        self._token = ""
        self._renew_at = 0.0

    def token(self) -> str:
        """The token; empty where munged does not answer.

        Raises:
            MungeError: munged does not answer although it should.
            grpc.RpcError: JobManager did not give a token.
        """
        from malletrain.runtime.access.munge import MungeError

        if not self._token or self._monotonic() >= self._renew_at:
            try:
                credential = self._munge.make_credential()
            except MungeError:
                if self._needed:
                    raise
                return ""
            answer = self._exchange(credential)
            lifespan = unix_seconds(answer.identity.expire_time) - unix_seconds(answer.identity.issue_time)
            self._renew_at = self._monotonic() + lifespan / 2
            self._token = answer.token
        return self._token

    def _exchange(self, credential: str) -> access_pb2.ExchangeMungeCredentialResponse:
        from malletrain.v1 import access_pb2_grpc

        request = access_pb2.ExchangeMungeCredentialRequest(credential=credential)
        channel = open_blocking_channel(self._job_manager, None)
        try:
            stub = access_pb2_grpc.AccessServiceStub(channel)
            return stub.ExchangeMungeCredential(request, timeout=2 * DEADLINE_SECONDS)
        finally:
            channel.close()


class FirstOf:
    """The first credential that has a token; they are asked in this order for every call."""

    def __init__(self, *credentials: Credential) -> None:
        self._credentials = credentials

    def token(self) -> str:
        """The token; empty if none has one."""
        return next((token for credential in self._credentials if (token := credential.token())), "")


def owner_credential(settings: InstallationView) -> Credential:
    """The credential of the account that runs the services of these settings."""
    return OwnerTokenReader(owner_file(settings.state_dir))


def caller_credential(settings: InstallationView, environment: Mapping[str, str] | None = None) -> Credential:
    """What the user has: a token of the environment; else the owner's, if the file is ours to read; else MUNGE.

    Args:
        settings: InstallationView of the services.
        environment: Variables; by default those of this process.

    Raises:
        InvalidInputError: the file that the environment names can't be read.
    """
    variables = os.environ if environment is None else environment
    if token := variables.get(TOKEN_VARIABLE, "").strip():
        return FixedToken(_check_token(token, TOKEN_VARIABLE))
    if path := variables.get(TOKEN_FILE_VARIABLE, ""):
        return RenewedToken(Path(path))
    from malletrain.runtime.access.munge import find_munge  # who has a token starts sooner without it

    owner = owner_credential(settings)
    munge = find_munge(settings.access)
    if munge is None:
        return owner
    needed = settings.access.munge == "on"
    return FirstOf(owner, MungeToken(munge, settings.peer("job_manager"), needed=needed, monotonic=time.monotonic))


def forget_token() -> None:
    """Take the token out of the environment: the services need none, and what they start must not inherit one."""
    os.environ.pop(TOKEN_VARIABLE, None)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TOKEN_LENGTH + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise InvalidInputError(TOKEN_FILE_VARIABLE, f"a file with a token ({error.strerror})", str(path)) from error


def _check_token(token: str, variable: str) -> str:
    if len(token) > _MAX_TOKEN_LENGTH or not _TOKEN.match(token):
        raise InvalidInputError(variable, f"a token: at most {_MAX_TOKEN_LENGTH} letters, digits and ._-")
    return token
