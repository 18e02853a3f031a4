"""Lists of a system's nodes: mere names, or what `scontrol show node -o` prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.calendar_time import CalendarReader
from malletrain.simulator.traces.hostlist import expand
from malletrain.simulator.traces.lines import Line
from malletrain.simulator.traces.occupancy import Machine

_BOOT = re.compile(r"\sBootTime=(\S+)")
_NEVER = ("None", "Unknown", "N/A")


def parse_machine(lines: Iterable[Line], calendar: CalendarReader, place: str, *, boot_times: bool = True) -> Machine:
    """Nodes in the file's order.

    Each line is either a node list (`n001`, `n[001-032],gpu1`) or one node of `scontrol show node -o`, whose
    `BootTime=` says from when on it is up; `BootTime=None` is a node that is not up at all. Empty lines and those that
    begin with `#` are skipped.

    Args:
        lines: The file.
        calendar: Of the conversion.
        place: The file's name.
        boot_times: Whether to heed `BootTime`.

    Raises:
        InvalidInputError: a line is neither, a node is named twice, or there is none.
    """
    seen: dict[str, str] = {}
    up_from: dict[str, float] = {}
    for line in lines:
        text = line.text.strip()
        if not text or text.startswith("#"):
            continue
        from_scontrol = text.startswith("NodeName=")
        names = expand(text.split()[0].removeprefix("NodeName=") if from_scontrol else text, line.place)
        for name in names:
            if name in seen:
                raise InvalidInputError(line.place, f"each node once ({name} is also in {seen[name]})")
            seen[name] = line.place
        boot = _BOOT.search(text) if from_scontrol and boot_times else None
        if boot:
            time = math.inf if boot[1] in _NEVER else calendar.read(boot[1], line.place)
            up_from.update(dict.fromkeys(names, time))
    if not seen:
        raise InvalidInputError(place, "at least one node")
    return Machine(tuple(seen), up_from, place)
