"""MUNGE: credentials by which the users of a cluster prove who they are. Runs its commands, without a shell."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import select
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from malletrain.common.child_process import ChildProcess, spawn, through_shell
from malletrain.common.trusted_files import reason_for_distrust
from malletrain.runtime.access.identity import Role, UnauthenticatedError
from malletrain.runtime.errors import InvalidInputError, MalleTrainError

PURPOSE = "malletrain"
"""What our credentials contain, so that one that was made for another program is no good here."""
MAX_CREDENTIAL_LENGTH = 4096
_MAX_BYTES = 16 * 1024
COMMAND_SECONDS = 5.0
_END_SECONDS = 1.0
_UID = re.compile(r"^UID:\s+(\d+)\s*$", re.MULTILINE)
_REASONS = {
    15: "the MUNGE credential has expired",
    16: "the MUNGE credential is not valid yet: compare the clocks of the machines",
    17: "the MUNGE credential has been used before",
}
"""Exit statuses of unmunge, which are those of libmunge."""


class MungeError(MalleTrainError):
    """MUNGE can't be used here; the message says why."""


@dataclass(frozen=True)
class Munge:
    """Makes and checks credentials by the commands of MUNGE.

    Attributes:
        munge: Path of `munge`.
        unmunge: Path of `unmunge`.
        socket: Socket of munged; empty: MUNGE's default.
    """

    munge: str
    unmunge: str
    socket: str = ""

    def make_credential(self) -> str:
        """A credential of the present user.

        Raises:
            MungeError: munged does not answer.
        """
        status, text = _run([self.munge, *self._socket(), "--string", PURPOSE])
        if status != 0 or not text.startswith("MUNGE:"):
            raise MungeError(f"munge failed with status {status}: does munged run?")
        return text.strip()

    def user_of(self, credential: str) -> str:
        """Name of the user who made a credential. It is used up by this.

        Raises:
            UnauthenticatedError: it is not valid, has been used, was made for another program, or nobody's.
            MungeError: munged does not answer.
        """
        if not 0 < len(credential) <= MAX_CREDENTIAL_LENGTH or not credential.isascii():
            raise UnauthenticatedError("that is no MUNGE credential")
        status, text = _run([self.unmunge, *self._socket(), "--numeric"], credential)
        if status in _REASONS:
            raise UnauthenticatedError(_REASONS[status])
        if status == 6:  # EMUNGE_SOCKET
            raise MungeError("munged does not answer")
        metadata, _, payload = text.partition("\n\n")
        if status != 0 or (match := _UID.search(metadata)) is None:
            raise UnauthenticatedError("that is no MUNGE credential of this cluster")
        if payload.strip() != PURPOSE:
            raise UnauthenticatedError(f"the MUNGE credential was not made for {PURPOSE}")
        return user_name(int(match.group(1)))

    def _socket(self) -> list[str]:
        return ["--socket", self.socket] if self.socket else []


class MungeSettings(Protocol):
    """Whether and by which commands MUNGE is used, as in the section `[access]`."""

    @property
    def munge(self) -> str:
        """`auto`, `on` or `off`."""

    @property
    def munge_path(self) -> str:
        """Folder of the commands; empty: as PATH says."""

    @property
    def munge_socket(self) -> str:
        """Socket of munged; empty: MUNGE's default."""


class RoleSettings(Protocol):
    """The users and groups to whom MUNGE gives roles, as in the section `[access]`."""

    @property
    def operators(self) -> tuple[str, ...]:
        """Users who become operators."""

    @property
    def viewers(self) -> tuple[str, ...]:
        """Users who become viewers."""


def find_munge(settings: MungeSettings) -> Munge | None:
    """The commands of MUNGE; None if they are not installed or the settings say off.

    Raises:
        InvalidInputError: this is root, and others could have written those that the settings name.
    """
    if settings.munge == "off":
        return None
    paths = [shutil.which(name, path=settings.munge_path or None) for name in ("munge", "unmunge")]
    munge, unmunge = paths
    if settings.munge_path and os.geteuid() == 0:
        for path in filter(None, paths):
            if reason := reason_for_distrust(Path(path)):
                raise InvalidInputError("access.munge_path", f"commands that only root can write: {reason}", path)
    return Munge(munge, unmunge, settings.munge_socket) if munge and unmunge else None


def user_name(uid: int) -> str:
    """Name of a user.

    Raises:
        UnauthenticatedError: there is none with this number.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise UnauthenticatedError(f"this machine knows no user with the uid {uid}") from None


def role_for(user: str, settings: RoleSettings, own_user: str) -> Role:
    """The role of a user whom MUNGE vouches for. Pure.

    Args:
        user: Name of the user.
        settings: Who is operator and who is viewer.
        own_user: Name of the account that runs the services.
    """
    if user == own_user or user in settings.operators:
        return Role.OPERATOR
    return Role.VIEWER if user in settings.viewers else Role.USER


def _run(argv: list[str], input_text: str = "") -> tuple[int, str]:
    """Exit status and output of a command, which gets five seconds and may write 16 KiB.

    Raises:
        MungeError: it can't be started, takes longer or writes more.
    """
    name = os.path.basename(argv[0])  # noqa: PTH119 - a name for people
    deadline = time.monotonic() + COMMAND_SECONDS
    environment = {"LC_ALL": "C"}
    reading, writing = os.pipe()
    try:
        try:
            process = _start(argv, environment, input_text.encode(), writing)
        except OSError as error:
            raise MungeError(f"{name} can't be started: {error.strerror}") from error
        finally:
            os.close(writing)
        try:
            text = _read(reading, deadline)
            if len(text) > _MAX_BYTES:
                raise MungeError(f"{name} wrote more than {_MAX_BYTES} bytes")
            status = process.wait(deadline - time.monotonic())
        except TimeoutError:
            raise MungeError(f"{name} did not end within {COMMAND_SECONDS:g} s") from None
        finally:
            process.kill()
            with contextlib.suppress(TimeoutError):  # the kernel may hold it for longer
                process.wait(_END_SECONDS)
    finally:
        os.close(reading)
    return status, text.decode(errors="replace")


def _read(pipe: int, deadline: float) -> bytes:
    """All of a pipe, or a little more than 16 KiB.

    Raises:
        TimeoutError: neither came in time.
    """
    poller, text = select.poll(), b""
    poller.register(pipe, select.POLLIN)
    while len(text) <= _MAX_BYTES:
        if not poller.poll(1000 * max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        piece = os.read(pipe, _MAX_BYTES + 1)
        if not piece:
            break
        text += piece
    return text


def _start(argv: Sequence[str], environment: Mapping[str, str], input_bytes: bytes, output: int) -> ChildProcess:
    """Start a command that reads what is given, from a file in memory."""
    source = os.memfd_create("given", os.MFD_CLOEXEC)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.write(source, input_bytes)
        os.lseek(source, 0, os.SEEK_SET)
        return spawn(through_shell(argv, environment), environment, stdin=source, stdout=output, stderr=null)
    finally:
        os.close(source)
        os.close(null)
