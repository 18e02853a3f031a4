"""Reads messages in protobuf-JSON form from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from malletrain.runtime.errors import InvalidInputError

_MessageT = TypeVar("_MessageT", bound=Message)


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InvalidInputError: it can't be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(path), f"a readable file ({error})") from None


def read_message(path: Path, message: _MessageT) -> _MessageT:
    """Read a message from a file into an empty one.

    Raises:
        InvalidInputError: the file can't be read, is no JSON, or has an unknown or ill-typed field.
    """
    text, name = read_text(path), message.DESCRIPTOR.name
    article = "an" if name[0] in "AEIOU" else "a"
    try:
        if not isinstance(json.loads(text), dict):
            raise InvalidInputError(str(path), f"{article} {name} as a JSON object")
        return json_format.Parse(text, message)
    except json.JSONDecodeError as error:
        raise InvalidInputError(str(path), f"JSON ({error})") from None
    except json_format.ParseError as error:
        raise InvalidInputError(str(path), f"{article} {name} ({' '.join(str(error).split())})") from None
    except RecursionError:
        raise InvalidInputError(str(path), "JSON that is not nested without end") from None
