"""Reads logs of a loop that polls `sinfo` for node states.

Times are what `date` prints, in the default form of many languages, and nothing that another command prints. The
forms are those of glibc's locales: `Mon Jan  5 08:00:00 CET 2026`, `lun. 05 janv. 2026 08:00:00 CET`,
`2026年  1月  5日 月曜日 08:00:00 JST`. Programs for dates in any language guess; a wrong month would not be noticed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.sources.schedulers.slurm_text import STATE_SUFFIXES, is_known_state
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.hostlist import MAX_NODES, expand
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.runs import OtherRow, SkippedRow

_MAX_LENGTH = 120
_TIME = re.compile(
    r"(?:(?<![\w.:-])|(?<=\dT))(\d{1,2})([:.])(\d\d)\2(\d\d)(?![\w.:])|(?<!\w)(\d\d)[時时](\d\d)分(\d\d)秒"
)
_YEAR_FIRST = re.compile(r"(?<![\d-])((?:19|20)\d\d)(?:-|\. |年 {0,2})(\d{1,2})(?:-|\. |月 {0,2})(\d{1,2})(?:\b|日|T)")
_YEAR_LAST = re.compile(r"(?<![\d.])(\d{1,2})\.(\d{1,2})\.((?:19|20)\d\d)(?!\d)")
_YEAR = re.compile(r"(?<![\w.-])((?:19|20)\d\d)(?![\w-])")
_DAY = re.compile(r"(?<![\w.:-])(\d{1,2})(?![\w:])")
_WORD = re.compile(r"[^\W\d_]+")
_MONTH_AFTER_DAY = re.compile(r"[. ]*(?:de |d[’'])?([^\W\d_]+)")
_OFFSET = re.compile(r"(?<![\w:.-])([+-])(\d\d):?(\d\d)?\b|\(UTC([+-])(\d\d)(\d\d)\)")
_ZONE = re.compile(r"\b[A-Z]{2,5}\b")
_UTC = frozenset({"UTC", "GMT", "UCT"})
_HALVES = {"AM": 0, "PM": 12}

_MONTHS = (
    "january januari januar janvier enero gennaio januari janeiro stycznia ledna ianuarie ocak gener января січня",
    "february februari februar fevrier febrero febbraio fevereiro lutego unora februarie subat febrer февраля лютого",
    "march maart mrt marz mars marzo marco marca brezna martie mart marc marec марта березня marts",
    "april avril abril aprile kwietnia dubna aprilie nisan апреля квітня",
    "may mei mai mayo maggio maj maio maja kvetna mayis maig мая май травня",
    "june juni juin junio giugno junho czerwca cervna iunie haziran juny июня червня",
    "july juli juillet julio luglio julho lipca cervence iulie temmuz juliol июля липня",
    "august augustus aout agosto sierpnia srpna agustos agost августа серпня avgust",
    "september septembre septiembre settembre setembro wrzesnia zari septembrie eylul setembre szept сентября вересня",
    "october oktober octobre octubre ottobre outubro pazdziernika rijna octombrie ekim октября жовтня okt",
    "november novembre noviembre novembro listopada listopadu noiembrie kasim ноября листопада",
    "december decembre diciembre dicembre dezembro dezember grudnia prosince decembrie aralik desember"
    " desembre декабря грудня",
)
"""Months in English, Dutch, German, French, Spanish, Italian, the Scandinavian languages, Portuguese, Polish, Czech,
Romanian, Turkish, Catalan, Russian and Ukrainian, without accents; abbreviations are their first letters."""
_MIN_LETTERS = 3


class DateLine(NamedTuple):
    """A time as `date` printed it.

    Attributes:
        text: The time in the form of ISO 8601, with its offset from UTC where that is sure.
        zone: The abbreviation of its zone, e.g. CET; empty without one. CST, for instance, may be one of three.
    """

    text: str
    zone: str


def read_date_line(line: str) -> DateLine | None:
    """The time in a line that has nothing else; None if it is another line.

    Args:
        line: E.g. `Mo 5. Jan 08:00:00 CET 2026`.
    """
    line = line.replace("\xa0", " ").strip()
    if len(line) > _MAX_LENGTH or "|" in line or "[" in line:
        return None
    times = list(_TIME.finditer(line))
    if len(times) != 1:
        return None
    time, rest = times[0], f"{line[: times[0].start()]} @ {line[times[0].end() :]}"
    offset = _OFFSET.search(rest)
    if offset:
        rest = f"{rest[: offset.start()]} {rest[offset.end() :]}"
    day = _calendar_day(rest)
    if day is None:
        return None
    words = _WORD.findall(rest)
    halves = [_HALVES[word.upper()] for word in words if word.upper() in _HALVES]
    hour, minute, second = (int(part) for part in time.groups() if part and part.isdigit())
    try:
        moment = datetime(*day, hour % 12 + halves[0] if halves else hour, minute, second)
    except ValueError:
        return None
    zones = [zone for zone in _ZONE.findall(line[time.end() :]) if zone not in _HALVES]
    zone = zones[0] if zones else ""
    if offset:
        sign, hours, minutes = offset[1] or offset[4], offset[2] or offset[5], offset[3] or offset[6] or "00"
        return DateLine(f"{moment.isoformat()}{sign}{hours}:{minutes}", "")
    return DateLine(f"{moment.isoformat()}+00:00" if zone in _UTC else moment.isoformat(), zone)


def _calendar_day(text: str) -> tuple[int, int, int] | None:
    """Year, month and day."""
    if first := _YEAR_FIRST.search(text):
        return int(first[1]), int(first[2]), int(first[3])
    if last := _YEAR_LAST.search(text):
        return int(last[3]), int(last[2]), int(last[1])
    years, days = _YEAR.findall(text), list(_DAY.finditer(text))
    if len(years) != 1 or len(days) != 1:
        return None
    # `mar 6 gen` is a Tuesday in January: a word right after the day is the month.
    after = _MONTH_AFTER_DAY.match(text, days[0].end())
    before = _WORD.findall(text[: days[0].start()])
    month = _month(after[1] if after else before[-1] if before else "")
    return (int(years[0]), month, int(days[0][1])) if month else None


def _month(word: str) -> int:
    """1 for January, in any of the languages; 0 if it is no month."""
    plain = _plain(word)
    months = [number for number, names in enumerate(_NAMES, 1) if any(name.startswith(plain) for name in names)]
    if len(plain) < _MIN_LETTERS or not months:
        return 0
    # `jui` is the beginning of June and July in French. Where it is a month by itself, it is July.
    return months[-1] if plain == "jui" else months[0] if len(months) == 1 else 0


def _plain(word: str) -> str:
    """Small letters without accents."""
    return "".join(c for c in unicodedata.normalize("NFKD", word.casefold()) if not unicodedata.combining(c))


_NAMES = tuple(tuple(_plain(names).split()) for names in _MONTHS)


IDLE_STATES = frozenset({"idle", "planned", "plnd"})
"""States of `sinfo` for nodes that are free and available. `planned` nodes wait for a larger job."""
UNKNOWN_STATE = "a word that is no state of sinfo: taken as not idle"
MAX_POLL_CHARACTERS = 64 * 1024 * 1024
"""More than any `sinfo` prints at once: a log without times is no log of polls."""

_EXPECTED = "STATE|NODES, NODE|STATE, a line below a header of `sinfo`, or a time"
_ISO = re.compile(r"\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d\S*")
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)[-_T ]?(\d\d)(\d\d)(\d\d)")
_SECONDS = re.compile(r"\d{9,12}(?:\.\d+)?")
_DECORATION = "#@=*->[] \t"
_LOCAL_CTIME = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}")
_LIKE_A_TIME = re.compile(r"(?=.*\b(?:19|20)\d\d\b)[^|\[]{0,60}\d{1,2}:\d\d:\d\d[^|\[]{0,60}")
_HEADER = re.compile(r"[A-Z][A-Z_&%():/.]*")
_NODE_COLUMNS = ("NODELIST", "HOSTNAMES", "NODEHOST", "NODE_HOST")
_NO_NODES = ("n/a", "(null)")
_NO_STATE = 1 << 30
"""A column that no line has."""


class PollContent(NamedTuple):
    """What a poll says, as a difference. Polls that are alike share one: a year has three million, most of which say
    what the one before said.

    Attributes:
        file: Path of the log.
        zone: Abbreviation of the zone of its time, as `date` printed it; empty where it is not known.
        is_local: Whether its time has no zone that is sure.
        joined: Nodes that are idle now, and were not in the last poll that named any node.
        left: The other way round.
        names_others: Whether it names nodes that are not idle.
        is_empty: Whether it names no node.
        unclear: How many of its lines have a word for a state that is not known.
    """

    file: str
    zone: str
    is_local: bool
    joined: tuple[str, ...]
    left: tuple[str, ...]
    names_others: bool
    is_empty: bool
    unclear: int


class Poll(NamedTuple):
    """One poll.

    Attributes:
        time_s: Seconds since 1970, in UTC or in the log's local time.
        number: Number of the line with its time.
        content: What it says.
    """

    time_s: float
    number: int
    content: PollContent

    @property
    def place(self) -> str:
        """File and line of its time, for errors."""
        return f"{self.content.file}:{self.number}"


class _Time(NamedTuple):
    """A line with a time and nothing else.

    Attributes:
        text: The time, for `CalendarReader`.
        zone: Its zone as `date` printed it.
        is_local: Whether there is no zone that is sure.
    """

    line: Line
    text: str
    zone: str
    is_local: bool


@dataclass
class PollReader:
    """Reads the polls of one or more files, in the order of time.

    Attributes:
        calendar: Reads the times of the conversion.
        places: All nodes that are named, each with the place where it is named first.
    """

    calendar: CalendarReader
    places: dict[str, str] = field(default_factory=dict)

    def read(self, lines: Iterable[Line]) -> Iterator[Poll | SkippedRow | OtherRow]:
        """Polls of a log.

        Each poll begins with a line that contains only a time, as `date` prints it in any of many languages or formats.
        What follows is printed by `sinfo`: with its header, or by `-h -o '%T|%N'`, `-h -N -o '%N|%T'` (with any further
        columns) or `-h -N -o '%N %T'`. A poll with a time that can't be read is skipped with all its lines, and so is a
        line that is none of these.

        Raises:
            InvalidInputError: it has no time before the first nodes, or no times at all.
        """
        idle: frozenset[str] = frozenset()
        texts: tuple[str, ...] | None = None
        answer = _Block(frozenset(), False, True, 0)
        content: PollContent | None = None
        for time, block in _blocks(lines):
            now = tuple(line.text for line in block)
            if now != texts:
                answer, skipped = self._block(block)
                yield from skipped
                # What could not be read shall be told each time.
                texts = None if skipped else now
            try:
                time_s = self.calendar.read(time.text, time.line.place)
            except InvalidInputError as error:
                yield SkippedRow("a time that is none", error)
                continue
            if answer.failed:
                yield OtherRow("polls that failed")
                continue
            before, idle = idle, (idle if answer.is_empty else answer.idle)
            joined, left = (tuple(idle - before), tuple(before - idle)) if idle != before else ((), ())
            flags = (answer.names_others, answer.is_empty, answer.unclear)
            present = PollContent(time.line.file, time.zone, time.is_local, joined, left, *flags)
            content = content if present == content else present
            yield Poll(time_s, time.line.number, content)

    def _block(self, lines: list[Line]) -> tuple[_Block, list[SkippedRow]]:
        """What the lines of one poll come to."""
        idle: set[str] = set()
        others: set[str] = set()
        skipped = []
        unclear = 0
        table = _Table()
        for line in lines:
            try:
                row = table.row(line)
                if row is None:
                    continue
                names, state = _names(row[0], line.place), row[1]
            except InvalidInputError as error:
                skipped.append(SkippedRow("a line that is not of sinfo", error))
                continue
            unclear += bool(names) and not is_known_state(state)
            (idle if state in IDLE_STATES else others).update(names)
            for name in names:
                self.places.setdefault(name, line.place)
            if len(self.places) > MAX_NODES:
                raise InvalidInputError(line.place, f"at most {MAX_NODES} nodes")
        is_empty = not idle and not others
        return _Block(frozenset(idle - others), bool(others), is_empty, unclear, is_empty and bool(skipped)), skipped


class _Block(NamedTuple):
    """What the lines of a poll come to; see `Poll`."""

    idle: frozenset[str]
    names_others: bool
    is_empty: bool
    unclear: int
    failed: bool = False


def _blocks(lines: Iterable[Line]) -> Iterator[tuple[_Time, list[Line]]]:
    """Each time, and the lines up to the next."""
    time: _Time | None = None
    block: list[Line] = []
    size = 0
    for line in lines:
        text = line.text.strip()
        if not text:
            continue
        next_time = _time(line, text)
        if next_time is None:
            if time is None:
                expected = "a line with the time before the first nodes, such as `date +%s` prints"
                raise InvalidInputError(line.place, expected, text[:80])
            size += len(text)
            if size > MAX_POLL_CHARACTERS:
                raise InvalidInputError(line.place, f"a time after at most {MAX_POLL_CHARACTERS} characters")
            block.append(line)
            continue
        if time is not None:
            # `date; sinfo -l`: the first line of `sinfo -l` is the time once more.
            if not block and _LOCAL_CTIME.fullmatch(text) and line.number == time.line.number + 1:
                continue
            yield time, block
        time, block, size = next_time, [], 0
    if time is not None:
        yield time, block


def _time(line: Line, text: str) -> _Time | None:
    """A line with a time only."""
    bare = text.strip(_DECORATION)
    if _ISO.fullmatch(bare):
        bare = bare.replace("_", "T", 1)
        return _Time(line, bare, "", not re.search(r"(?:Z|[+-]\d\d:?\d*)$", bare[19:]))
    if compact := _COMPACT.fullmatch(bare):
        year, month, day, hour, minute, second = compact.groups()
        return _Time(line, f"{year}-{month}-{day}T{hour}:{minute}:{second}", "", True)
    if _SECONDS.fullmatch(bare):
        return _Time(line, bare, "", False)
    if parsed := read_date_line(bare):
        return _Time(line, parsed.text, parsed.zone, len(parsed.text) == len("2026-01-05T08:00:00"))
    if _LIKE_A_TIME.fullmatch(text) and not any(map(is_known_state, text.split())):
        # It can't be read, and ends the poll before: its nodes are of another time.
        return _Time(line, bare, "", True)
    return None


@dataclass
class _Table:
    """How the columns of a poll are arranged.

    Attributes:
        state: Number of the column with the state; None: no header has said.
        nodes: Number of that with the nodes, -1 for the last.
        states_first: Whether the state comes before the nodes, where no header says so; None: not known.
    """

    state: int | None = None
    nodes: int = 0
    states_first: bool | None = None

    def row(self, line: Line) -> tuple[str, str] | None:
        """Nodes and state of a line; None of a header.

        Raises:
            InvalidInputError: it is no line of sinfo.
        """
        text = line.text.strip()
        cells = [cell.strip() for cell in text.split("|")] if "|" in text else text.split()
        if self._is_header(cells):
            return None
        if self.state is not None:
            return self._below_header(cells, line)
        # `sinfo -N -l` without its header: NODELIST NODES PARTITION STATE ...
        if "|" not in text and len(cells) > 3 and cells[1].isdecimal() and is_known_state(cells[3]):
            return cells[0], cells[3]
        if len(cells) > 1 and is_known_state(cells[1]):
            self.states_first = False
            return cells[0], cells[1]
        if len(cells) == 2 and is_known_state(cells[0]):
            self.states_first = True
            return cells[1], cells[0]
        if len(cells) == 2 and self.states_first is not None:
            return (cells[1], cells[0]) if self.states_first else (cells[0], cells[1])
        if len(cells) == 2 and "|" in text and _may_be_nodes(cells[0]) != _may_be_nodes(cells[1]):
            return (cells[0], cells[1]) if _may_be_nodes(cells[0]) else (cells[1], cells[0])
        raise InvalidInputError(line.place, _EXPECTED, text[:80])

    def _is_header(self, cells: list[str]) -> bool:
        if len(cells) < 2 or not all(map(_HEADER.fullmatch, cells)):
            return False
        states = [number for number, cell in enumerate(cells) if cell.startswith("STATE")]
        nodes = [number for number, cell in enumerate(cells) if cell in _NODE_COLUMNS]
        if not nodes:
            return False
        self.state = states[0] if states else _NO_STATE
        # Columns between may be empty, such as that of reservations.
        self.nodes = -1 if nodes[0] == len(cells) - 1 and nodes[0] else nodes[0]
        return True

    def _below_header(self, cells: list[str], line: Line) -> tuple[str, str]:
        assert self.state is not None
        if len(cells) <= self.state:
            expected = "a column with the states of nodes (`sinfo -s` has none)"
            raise InvalidInputError(line.place, expected, line.text.strip()[:80])
        nodes = "" if self.nodes == -1 and len(cells) == self.state + 1 else cells[self.nodes]
        return nodes, cells[self.state]


def _may_be_nodes(cell: str) -> bool:
    return any(character.isdigit() for character in cell.rstrip(STATE_SUFFIXES))


def _names(nodes: str, place: str) -> tuple[str, ...]:
    if not nodes or nodes in _NO_NODES:
        return ()
    try:
        return _expanded(nodes)
    except InvalidInputError:
        return expand(nodes, place)


_expanded = lru_cache(maxsize=256)(expand)
