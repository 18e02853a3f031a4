"""Delivers a notice by a program that is ended when its time is up."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from malletrain.common.addresses import is_loopback
from malletrain.common.backoff import Backoff
from malletrain.common.commands import start_command
from malletrain.common.files import open_plain
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.notices import post
from malletrain.runtime.notices.settings import ReceiverSettings

_KEPT_VARIABLES = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
"""Of the service's own environment: the rest may contain secrets."""
_MAX_REASON_BYTES = 300


_MAX_BYTES = 8192


class NoticeOutcome(Enum):
    """How a delivery ended."""

    DELIVERED = "delivered"
    TRY_AGAIN = "try again"
    REFUSED = "refused"


class NoticeDelivery(NamedTuple):
    """How a delivery ended, and why it was none; for people."""

    outcome: NoticeOutcome
    reason: str = ""


class Deliver(Protocol):
    """Delivers a notice. Never raises but for a cancellation."""

    async def __call__(self, notice: str) -> NoticeDelivery:
        """Deliver JSON."""


class WebhookDelivery:
    """Posts notices to a URL."""

    def __init__(self, file: Path, seconds: float, section: str) -> None:
        """Check the file; it is read again for each notice, so that it can be changed at any time.

        Args:
            file: See `read_webhook`.
            seconds: How long a delivery may take.
            section: Section of settings that names the file, for errors.

        Raises:
            InvalidInputError: the file can't be used.
        """
        self._field = f"{section}.webhook_file"
        read_webhook(file, self._field)
        self._file = file
        self._seconds = seconds

    async def __call__(self, notice: str) -> NoticeDelivery:
        """Post a notice. What is secret is given in a file in memory."""
        try:
            webhook = read_webhook(self._file, self._field)
        except InvalidInputError as error:
            return NoticeDelivery(NoticeOutcome.TRY_AGAIN, str(error))
        request = json.dumps({**webhook._asdict(), "body": notice, "seconds": self._seconds})
        words = (sys.executable, "-I", str(Path(post.__file__)))
        status, error_output = await run_program(words, request, self._seconds, _environment(os.environ), hear=True)
        outcomes = {post.DELIVERED: NoticeOutcome.DELIVERED, post.REFUSED: NoticeOutcome.REFUSED}
        return NoticeDelivery(
            outcomes.get(status, NoticeOutcome.TRY_AGAIN) if status is not None else NoticeOutcome.TRY_AGAIN,
            error_output,
        )


class CommandDelivery:
    """Runs the operator's program."""

    def __init__(self, words: Sequence[str], seconds: float, section: str) -> None:
        """Check the program.

        Args:
            words: Program, by its absolute path, and arguments.
            seconds: How long it may take.
            section: Section of settings that names the program, for errors.

        Raises:
            InvalidInputError: there is no such program.
        """
        if not Path(words[0]).is_absolute() or not os.access(words[0], os.X_OK) or Path(words[0]).is_dir():
            field = f"{section}.command[0]"
            raise InvalidInputError(field, "the absolute path of a program", words[0])
        self._words = tuple(words)
        self._seconds = seconds

    async def __call__(self, notice: str) -> NoticeDelivery:
        """Run it with a notice on standard input."""
        status, error_output = await run_program(
            self._words, notice, self._seconds, _environment(os.environ), hear=False
        )
        if status == 0:
            return NoticeDelivery(NoticeOutcome.DELIVERED)
        return NoticeDelivery(NoticeOutcome.TRY_AGAIN, error_output if status is None else f"exit status {status}")


async def run_program(
    words: Sequence[str], input_text: str, seconds: float, environment: Mapping[str, str], *, hear: bool
) -> tuple[int | None, str]:
    """Run a program in a session of its own, which is killed when time is up or the caller is cancelled.

    Args:
        words: Program and arguments.
        input_text: Its standard input.
        seconds: How long it may take.
        hear: Whether to return the beginning of what it says on standard error; else it can say nothing.

    Returns:
        Its exit status, None if it did not end by itself; and what it said, or why there is no status.
    """
    try:
        process = await start_command(
            words,
            environment,
            folder="/",
            stdin=input_text.encode(),
            hear_output=False,
            hear_errors=hear,
            seconds=seconds,
        )
    except (OSError, ValueError) as error:
        return None, f"can't be run ({error})"
    try:
        async with asyncio.timeout(seconds):
            error_output = await process.stderr.read(_MAX_REASON_BYTES)
            return await process.wait(), error_output.decode(errors="replace").strip()
    except TimeoutError:
        return None, f"no end within {seconds:g} s"
    finally:
        await process.close()


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in _KEPT_VARIABLES if name in environment}


class Webhook(NamedTuple):
    """The address and the secrets of a webhook.

    Attributes:
        authorization: Value of the header Authorization; empty: none is sent.
    """

    url: str
    authorization: str


def read_webhook(path: Path, field: str) -> Webhook:
    """The webhook that a file names.

    Args:
        path: The file.
        field: The setting that names it, for errors.

    Raises:
        InvalidInputError: the file can't be read, others can read it, or it does not contain what is expected. The
            error does not repeat what is in it.
    """
    try:
        with open_plain(path.absolute()) as file:
            status = os.fstat(file.fileno())
            text = file.read(_MAX_BYTES + 1).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise InvalidInputError(field, f"a file that can be read ({reason})", str(path)) from None
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise InvalidInputError(field, "a file that only its owner can read (chmod 600)", str(path))
    lines = text.splitlines()
    if len(text) > _MAX_BYTES or not 1 <= len(lines) <= 2 or not all(line.isprintable() for line in lines):
        raise InvalidInputError(field, "a file of one or two lines: URL, and value of Authorization", str(path))
    url, authorization = lines[0].strip(), lines[1].strip() if len(lines) == 2 else ""
    _check_url(url, path, field)
    return Webhook(url, authorization)


def _check_url(url: str, path: Path, field: str) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    local = is_loopback(f"[{host}]:{port or 80}" if ":" in host else f"{host}:{port or 80}")
    if not host or " " in url or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise InvalidInputError(field, "an https URL in the first line, or an http one of this machine", str(path))
    if parts.username is not None or parts.password is not None:
        raise InvalidInputError(field, "no user in the URL; the second line is for Authorization", str(path))


def receivers(settings: ReceiverSettings, section: str) -> dict[str, Deliver]:
    """What delivers notices to each receiver that is set, by its name.

    Args:
        section: Their section, for errors.

    Raises:
        InvalidInputError: a receiver can't be used.
    """
    deliveries: dict[str, Deliver] = {}
    if settings.webhook_file is not None:
        deliveries["webhook"] = WebhookDelivery(settings.webhook_file, settings.timeout_seconds, section)
    if settings.command:
        deliveries["command"] = CommandDelivery(settings.command, settings.timeout_seconds, section)
    return deliveries


async def send(notice: str, deliver: Deliver, settings: ReceiverSettings, clock: Clock, log: Any) -> bool:
    """Deliver a notice, or give it up.

    Args:
        notice: JSON.
        deliver: Delivers it.
        settings: How often it is tried, and for how long.
        clock: Clock.
        log: Bound to what the notice is about.

    Returns:
        Whether it was delivered.
    """
    begin, attempts = clock.monotonic(), 0
    backoff = Backoff(settings.retry_seconds, settings.retry_max_seconds)
    while True:
        attempts += 1
        pause = backoff.fail()
        outcome, reason = await deliver(notice)
        late = clock.monotonic() - begin + pause > settings.give_up_seconds
        if outcome is NoticeOutcome.DELIVERED:
            log.info("notification delivered", attempts=attempts)
            return True
        if outcome is NoticeOutcome.REFUSED or late:
            log.error("notification given up", reason=reason)
            return False
        log.warning("notification delayed", reason=reason, pause_seconds=pause)
        await asyncio.sleep(pause)
