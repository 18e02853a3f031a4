"""Reads JSON value by value: a year of `sacct --json` has some gigabytes."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.lines import UNREADABLE, Line, OpenLog, open_log, unreadable

MAX_VALUE_CHARACTERS = 32 * 1024**2
"""Of one job: those with many steps have some hundred kilobytes."""
_CHUNK_BYTES = 1024**2
_BLANK = " \t\r\n"
_UNIT = ": job "


class JsonValue(NamedTuple):
    """One value.

    Attributes:
        line: Where it stands: its number instead of a line, and no text.
        value: What it is.
    """

    line: Line
    value: object


def is_json(path: Path) -> bool:
    """Whether a log, plain or compressed, begins as JSON does.

    Raises:
        InvalidInputError: it can't be read.
    """
    try:
        with open_log(path) as log:
            begin = log.file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()
    except UNREADABLE as error:
        raise unreadable(error, path) from error
    return begin[:1] in (b"{", b"[")


def read_values(path: Path, key: str, progress: Callable[[float], None] | None = None) -> Iterator[JsonValue]:
    """The elements of an array of a JSON file.

    The file has an object with the array under a key, or the array itself, or the elements one after the other, as
    `jq -c` prints them; or several of these.

    Args:
        path: The file, plain or compressed.
        key: Key of the array.
        progress: Called now and then with the number of bytes that were read, of the file as it lies there.

    Raises:
        InvalidInputError: the file can't be read, is no JSON, or one of its elements is too large.
    """
    number = 0
    try:
        with open_log(path) as log:
            source = _Source(log, progress)
            for number, value in enumerate(_elements(source, key), 1):
                yield JsonValue(Line(str(path), number, "", _UNIT), value)
    except UNREADABLE as error:
        raise unreadable(error, path, number) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"{path}{_UNIT}{number + 1}", f"JSON ({error})") from error


def _elements(source: _Source, key: str) -> Iterator[object]:
    while source.next_character():
        if source.take("["):
            yield from _array(source)
        elif source.take("{"):
            yield from _object(source, key)
        else:
            yield source.value()


def _array(source: _Source) -> Iterator[object]:
    if source.take("]"):
        return
    while True:
        yield source.value()
        if not source.take(","):
            source.expect("]")
            return


def _object(source: _Source, key: str) -> Iterator[object]:
    """The elements of the array under the key; the object itself where there is none."""
    others: dict[str, object] = {}
    wrapped = False
    if source.take("}"):
        yield others
        return
    while True:
        name = str(source.value())
        source.expect(":")
        if name == key and source.take("["):
            wrapped = True
            yield from _array(source)
        else:
            others[name] = source.value()
        if not source.take(","):
            source.expect("}")
            break
    if not wrapped:
        yield others


class _Source:
    """Text of which values are taken from the front."""

    def __init__(self, log: OpenLog, progress: Callable[[float], None] | None) -> None:
        self._log = log
        self._progress = progress
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._ended = False

    def next_character(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _BLANK:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._read(_CHUNK_BYTES)

    def take(self, character: str) -> bool:
        """Whether this comes next; then it is taken."""
        is_next = self.next_character() == character
        self._at += is_next
        return is_next

    def expect(self, character: str) -> None:
        """Take this character.

        Raises:
            ValueError: another one comes next.
        """
        if not self.take(character):
            raise ValueError(f"{character} is missing")

    def value(self) -> object:
        """Take a whole value.

        Raises:
            ValueError: what comes next is none, or is too long.
        """
        self.next_character()
        wanted = _CHUNK_BYTES
        while True:
            try:
                parsed, end = self._scan(self._text, self._at)
                # A number at the end of what was read may go on.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return parsed
            except ValueError:
                if self._ended:
                    raise
            if len(self._text) - self._at > MAX_VALUE_CHARACTERS:
                raise ValueError(f"no value ends within {MAX_VALUE_CHARACTERS} characters")
            self._read(wanted)
            wanted *= 2

    def _read(self, size: int) -> None:
        raw = self._log.file.read(size)
        self._ended = not raw
        self._text = self._text[self._at :] + self._decoder.decode(raw, final=self._ended)
        self._at = 0
        if self._progress is not None:
            self._progress(self._log.position())
