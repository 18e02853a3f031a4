"""Lists of a system's nodes: names, or the output of `scontrol show node -o`."""

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

    Each line is either a hostlist (`n001`, `n[001-032],gpu1`) or a node as printed by `scontrol show node -o`. Such a
    node is up from its `BootTime=` on; with `BootTime=None` it is never up. Empty lines and lines that begin with `#`
    are skipped.

    Args:
        lines: The file.
        calendar: Reads the times of the conversion.
        place: Name of the file, for errors.
        boot_times: Whether to use `BootTime`.

    Raises:
        InvalidInputError: a line is malformed, a node is named twice, or there is no node.
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
