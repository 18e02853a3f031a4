"""Reads what PBS calls JSON. A value that is none is kept as text: one user's variable does not hide all other jobs.

Until the end of 2023 (openpbs 74106a6) PBS wrote its JSON by itself: names as they are, quotes and backslashes hardly
escaped, and without quotes whatever `strtod` takes for a number (`.5`, `005`, `0x1f`, `inf`, nothing at all). That
JSON has one member a line, and is read by lines (`_by_lines`): what is inside a value then can't look like a member.
All other JSON is read strictly, and where that fails, character by character (`_Reader`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from malletrain.scavenger.sources.schedulers.availability import UnreadableError

MAX_DEPTH = 12
"""Objects in objects. What is deeper is read over: PBS itself needs four."""
_MAX_DIGITS = 18

_BY_PBS_ITSELF = re.compile(r'\{\n {4}"[A-Za-z_]+":\S')
_MEMBER = re.compile(r'( *)"(.*?)":(.*)')
_ELEMENT = re.compile(r'( *)"(.*)"')
_INDENT = 4

_SPACE = re.compile(r"\s*")
_ESCAPED = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BARE = re.compile(r'[^,{}\[\]"\n]*')
_ESCAPE = re.compile(r'\\(u[0-9A-Fa-f]{4}|["\\/bfnrt])')
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_INTEGER = re.compile(rf"-?(?:0|[1-9]\d{{0,{_MAX_DIGITS - 1}}})")
_KNOWN = {"true": True, "false": False, "null": None}
_AFTER_KEY = re.compile(r"\s{0,99}:")
_AFTER_MEMBER = re.compile(r'\s{0,99}(?:,\s{0,99}"|\})')
_AFTER_ELEMENT = re.compile(r"\s{0,99}[,\]]")
_AFTER_ANYTHING = re.compile(r"\s{0,99}(?:[,:\]}]|\Z)")
_SURELY_AFTER_MEMBER = re.compile(r'\s{0,99}(?:,\s{0,99}"[^"\\\n]{0,256}"\s{0,99}:|\}\s{0,99}(?:[,}]|\Z))')
_NEXT_JOB = re.compile(r'[,{]\s{0,99}(?="\d+(?:\[\d*\])?\.[^"\\\s]{1,256}"\s{0,99}:\s{0,99}\{)')


def read_answer(text: str, *, skip_damage: bool = False) -> dict[str, Any]:
    """What a command of PBS prints with `-F json`.

    Takes time in proportion to the text, and no more memory than strict JSON does.

    Args:
        text: What was printed.
        skip_damage: Whether to go on with the next job after a part of which nothing can be made. Otherwise such an
            answer is refused: a node that is missing must not look as if it were not there.

    Raises:
        UnreadableError: it is no object, or damaged.
    """
    if _BY_PBS_ITSELF.match(text):
        return _by_lines(text)
    answer: Any
    try:
        answer = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        answer = _Reader(text, skip_damage).answer()
    if not isinstance(answer, dict):
        raise UnreadableError("a JSON object", text)
    return answer


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _by_lines(text: str) -> dict[str, Any]:
    """JSON as PBS itself writes it: one member a line, by four spaces for each level."""
    lines = text.split("\n")
    if lines[0] != "{" or "}" not in lines[-2:]:
        raise UnreadableError("JSON that is not cut short", text[-40:])
    top: dict[str, Any] = {}
    open_: list[dict[str, Any] | list[Any]] = [top]
    for line in lines[1:]:
        member = _MEMBER.fullmatch(line)
        element = None if member else _ELEMENT.fullmatch(line.removesuffix(","))
        match = member or element
        if match is None:
            continue
        depth, odd = divmod(len(match[1]), _INDENT)
        if odd or not 1 <= depth <= min(len(open_), MAX_DEPTH):
            continue
        del open_[depth:]
        parent = open_[-1]
        if member and isinstance(parent, dict):
            value = _value_of_line(member[3])
            # What comes first counts: nothing that is added later replaces it.
            value = parent.setdefault(member[2], value)
            if isinstance(value, dict | list):
                open_.append(value)
        elif element and isinstance(parent, list):
            parent.append(_unescape(element[2]))
    return top


def _value_of_line(text: str) -> Any:
    if text in ("{", "["):
        return {} if text == "{" else []
    text = text.removesuffix(",")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _unescape(text[1:-1])
    return _plain(text)


class _DamageError(Exception):
    """No value can be made of the text at this place."""


class _Reader:
    """Reads JSON and what is nearly JSON, from left to right.

    A string ends with the first quote that is not escaped, if what follows can follow a string. If not, it ends with
    the first quote of any kind that is surely followed by another member: so a lone backslash at its end
    (`"C:\\"`) and quotes inside (`"say "hi""`) change this one value. `_steps` bounds the work.
    """

    def __init__(self, text: str, skip_damage: bool) -> None:
        self._text = text
        self._at = 0
        self._skip_damage = skip_damage
        self._steps = 16 * len(text) + 1024
        self._top: dict[str, Any] = {}

    def answer(self) -> dict[str, Any]:
        """The whole text.

        Raises:
            UnreadableError: it is no object, damaged, or cut short.
        """
        try:
            if self._next() != "{":
                raise _DamageError
            self._object(1, self._top)
            if self._next():
                raise _DamageError
        except _DamageError:
            jobs = self._top.get("Jobs")
            cut = self._at >= len(self._text) or not self._text.rstrip().endswith("}")
            if cut or not self._skip_damage or not isinstance(jobs, dict):
                expected = "JSON that is not cut short" if cut else "JSON"
                raise UnreadableError(expected, self._text[max(0, self._at - 40) : self._at + 40]) from None
            self._resume(jobs)
        return self._top

    def _resume(self, jobs: dict[str, Any]) -> None:
        """Read the jobs that come after the damage."""
        while match := _NEXT_JOB.search(self._text, self._at):
            self._at = match.end()
            try:
                self._member(jobs, 2)
            except _DamageError:
                if self._steps < 0:
                    return

    def _next(self) -> str:
        """The next character that is no space; empty at the end."""
        self._at = self._match(_SPACE).end()
        return self._text[self._at : self._at + 1]

    def _object(self, depth: int, into: dict[str, Any]) -> dict[str, Any]:
        self._at += 1
        while (character := self._next()) != "}":
            if character == ",":
                self._at += 1
            elif character == '"':
                self._member(into, depth)
            else:
                raise _DamageError
        self._at += 1
        return into

    def _member(self, into: dict[str, Any], depth: int) -> None:
        key = self._string(_AFTER_KEY, _AFTER_KEY)
        self._next()
        self._at += 1
        if self._next() == "{" and depth < MAX_DEPTH:
            # In place, so that what was read before damage stays; some versions begin `Jobs` anew with each job.
            # What comes first counts: nothing that is added later replaces it.
            known = into.setdefault(key, {})
            self._object(depth + 1, known if isinstance(known, dict) else {})
        else:
            value = self._value(depth, _AFTER_MEMBER, _SURELY_AFTER_MEMBER)
            into.setdefault(key, value)

    def _value(self, depth: int, after: re.Pattern[str], surely_after: re.Pattern[str]) -> Any:
        match self._next():
            case '"':
                return self._string(after, surely_after)
            case "{" | "[" if depth >= MAX_DEPTH:
                return self._skip_nested()
            case "{":
                return self._object(depth + 1, {})
            case "[":
                return self._array(depth + 1)
        bare = self._match(_BARE)
        self._at = bare.end()
        return _plain(bare[0].strip())

    def _array(self, depth: int) -> list[Any]:
        values = []
        self._at += 1
        while (character := self._next()) != "]":
            if not character or character == "}":
                raise _DamageError
            if character == ",":
                self._at += 1
            else:
                values.append(self._value(depth, _AFTER_ELEMENT, _AFTER_ELEMENT))
        self._at += 1
        return values

    def _string(self, after: re.Pattern[str], surely_after: re.Pattern[str]) -> str:
        begin = self._at + 1
        ends = _ESCAPED.match(self._text, begin)
        self._count((ends.end() if ends else len(self._text)) - begin)
        if ends and after.match(self._text, ends.end()):
            self._at = ends.end()
            return _unescape(self._text[begin : self._at - 1])
        end = begin - 1
        while (end := self._text.find('"', end + 1)) >= 0:
            self._count(1)
            if surely_after.match(self._text, end + 1):
                self._count(end - begin)
                self._at = end + 1
                return _unescape(self._text[begin:end])
        self._count(len(self._text) - begin)
        raise _DamageError

    def _skip_nested(self) -> None:
        """Go behind the closing bracket, without looking at what is inside."""
        open_ = 0
        while character := self._next():
            if character == '"':
                self._string(_AFTER_ANYTHING, _AFTER_ANYTHING)
                continue
            self._at += 1
            open_ += (character in "{[") - (character in "}]")
            if not open_:
                return
        raise _DamageError

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """A match at this place, of a pattern that matches even nothing."""
        match = pattern.match(self._text, self._at)
        assert match is not None
        self._count(match.end() - self._at + 1)
        return match

    def _count(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise _DamageError


def _plain(text: str) -> Any:
    """A value without quotes: what JSON knows, or else the text itself."""
    if _INTEGER.fullmatch(text):
        return int(text)
    return _KNOWN.get(text, text)


def _unescape(text: str) -> str:
    """A string without JSON's escapes; a backslash that escapes nothing stays."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _LETTERS.get(code, code)
