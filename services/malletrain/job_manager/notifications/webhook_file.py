"""The file of a webhook: its URL, and what it is shown. Both are secrets."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from malletrain.common.addresses import is_loopback
from malletrain.common.files import open_plain
from malletrain.runtime.errors import InvalidInputError

_FIELD = "job_manager.notifications.webhook_file"
_LARGEST_BYTES = 8192


class Webhook(NamedTuple):
    """Where notices are posted.

    Attributes:
        url: The URL.
        authorization: Value of the header Authorization; empty: none is sent.
    """

    url: str
    authorization: str


def read_webhook(path: Path) -> Webhook:
    """The webhook that a file names.

    Raises:
        InvalidInputError: the file can't be read, others can read it, or it does not contain what is expected. The
            error does not repeat what is in it.
    """
    try:
        with open_plain(path.absolute()) as file:
            found = os.fstat(file.fileno())
            text = file.read(_LARGEST_BYTES + 1).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise InvalidInputError(_FIELD, f"a file that can be read ({reason})", str(path)) from None
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidInputError(_FIELD, "a file that only its owner can read (chmod 600)", str(path))
    lines = text.splitlines()
    if len(text) > _LARGEST_BYTES or not 1 <= len(lines) <= 2 or not all(line.isprintable() for line in lines):
        raise InvalidInputError(_FIELD, "a file of one or two lines: URL, and value of Authorization", str(path))
    url, authorization = lines[0].strip(), lines[1].strip() if len(lines) == 2 else ""
    _check_url(url, path)
    return Webhook(url, authorization)


def _check_url(url: str, path: Path) -> None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    local = is_loopback(f"[{host}]:{port or 80}" if ":" in host else f"{host}:{port or 80}")
    if not host or " " in url or not (parts.scheme == "https" or (parts.scheme == "http" and local)):
        raise InvalidInputError(_FIELD, "an https URL in the first line, or an http one of this machine", str(path))
    if parts.username is not None or parts.password is not None:
        raise InvalidInputError(_FIELD, "no user in the URL; the second line is for Authorization", str(path))
