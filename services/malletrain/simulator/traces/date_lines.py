"""Reads what `date` prints, in the default form of many languages, and nothing that another command prints.

The forms are those of glibc's locales: `Mon Jan  5 08:00:00 CET 2026`, `lun. 05 janv. 2026 08:00:00 CET`,
`2026年  1月  5日 月曜日 08:00:00 JST`. Programs for dates in any language guess; a wrong month would not be noticed.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime
from typing import NamedTuple

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
    found = [number for number, names in enumerate(_NAMES, 1) if any(name.startswith(plain) for name in names)]
    if len(plain) < _MIN_LETTERS or not found:
        return 0
    # `jui` is the beginning of June and July in French. Where it is a month by itself, it is July.
    return found[-1] if plain == "jui" else found[0] if len(found) == 1 else 0


def _plain(word: str) -> str:
    """Small letters without accents."""
    return "".join(c for c in unicodedata.normalize("NFKD", word.casefold()) if not unicodedata.combining(c))


_NAMES = tuple(tuple(_plain(names).split()) for names in _MONTHS)
