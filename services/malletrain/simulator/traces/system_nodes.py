"""The nodes of a system: from a list, or as a log names them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.hostlist import expand
from malletrain.simulator.traces.lines import Line

_BOOT = re.compile(r"(?:^|\s)BootTime=(\S+)")
_NEVER = ("None", "Unknown", "N/A")
_COLUMNS = ["node", "from", "until"]


@dataclass(frozen=True)
class SystemNodes:
    """The nodes of a system.

    Attributes:
        names: Names in order, without duplicates.
        booted_s: When a node was last booted, for nodes for which it is known; infinity if it never was.
        present_s: When a node was part of the system, for nodes for which it is known; minus and plus infinity where a
            time is not known.
        place: Where the list comes from, for errors.
        listed: Whether there is a list; False: the nodes are those that jobs used.
    """

    names: tuple[str, ...]
    booted_s: Mapping[str, float] = field(default_factory=dict)
    present_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    place: str = "the log"
    listed: bool = True


def parse_nodes(lines: Iterable[Line], calendar: CalendarReader, place: str, *, boot_times: bool = True) -> SystemNodes:
    """Nodes in the file's order.

    Each line is a hostlist (`n001`, `n[001-032],gpu1`), or a node as printed by `scontrol show node`, with or without
    `-o`; or the file is CSV with the header `node,from,until` and hostlists in its first column. A node that was booted
    is up from its `BootTime=` on; with `BootTime=None` it is never up. Empty lines and lines that begin with `#` are
    skipped.

    Args:
        lines: The file.
        calendar: Reads the times of the conversion.
        place: Name of the file, for errors.
        boot_times: Whether to use `BootTime`.

    Raises:
        InvalidInputError: a line is malformed, a node is named twice, or there is no node.
    """
    seen: dict[str, str] = {}
    booted: dict[str, float] = {}
    present: dict[str, tuple[float, float]] = {}
    names: tuple[str, ...] = ()
    in_table = in_scontrol = False
    for line in lines:
        text = line.text.strip()
        if not text or text.startswith("#"):
            continue
        if not seen and [cell.strip() for cell in text.split(",")] == _COLUMNS:
            in_table = True
            continue
        begins = text.startswith("NodeName=")
        in_scontrol = in_scontrol or begins
        if begins or not in_scontrol:
            cells = text.rsplit(",", 2) if in_table else [text]
            names = expand(cells[0].split()[0].removeprefix("NodeName=") if begins else cells[0].strip(), line.place)
            if in_table:
                present.update(dict.fromkeys(names, _interval(cells, line, calendar)))
            for name in names:
                if name in seen:
                    raise InvalidInputError(line.place, f"each node once ({name} is also in {seen[name]})")
                seen[name] = line.place
        boot = _BOOT.search(text) if in_scontrol and boot_times else None
        if boot:
            time = math.inf if boot[1] in _NEVER else calendar.read(boot[1], line.place)
            booted.update(dict.fromkeys(names, time))
    if not seen:
        raise InvalidInputError(place, "at least one node")
    return SystemNodes(tuple(seen), booted, present, place)


def _interval(cells: list[str], line: Line, calendar: CalendarReader) -> tuple[float, float]:
    if len(cells) != len(_COLUMNS):
        raise InvalidInputError(line.place, ",".join(_COLUMNS), line.text[:80])
    begin, end = (cell.strip() for cell in cells[1:])
    begin_s = calendar.read(begin, line.place) if begin else -math.inf
    end_s = calendar.read(end, line.place) if end else math.inf
    if not begin_s < end_s:
        raise InvalidInputError(line.place, f"an end after the begin ({begin})", end)
    return begin_s, end_s


def match_names(named: Iterable[str], listed: Iterable[str]) -> dict[str, str]:
    """Which node of a list a log's name means.

    A name that the list lacks means the node with the same first label, where there is one such node in the list and
    one such name in the log: logs and lists differ in whether they have domains.

    Returns:
        Node of the list for each name that means one.
    """
    known = set(listed)
    matches = {name: name for name in named if name in known}
    by_label: dict[str, list[str]] = defaultdict(list)
    others: dict[str, list[str]] = defaultdict(list)
    for name in known:
        by_label[_first_label(name)].append(name)
    for name in named:
        if name not in known:
            others[_first_label(name)].append(name)
    for label, names in others.items():
        nodes = by_label.get(label, [])
        one_has_a_domain = len(names) == len(nodes) == 1 and ("." in names[0]) != ("." in nodes[0])
        if one_has_a_domain:
            matches[names[0]] = nodes[0]
    return matches


def _first_label(name: str) -> str:
    return name.split(".", 1)[0]
