"""Tables as printed by Slurm's accounting commands with `-P`: columns separated by `|`, names in the first line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.lines import Line


def parse_pipe_table(
    lines: Iterable[Line], needed: Sequence[str], command: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows as column → value, each with its place. Empty lines and repeated headers are skipped.

    A `|` at the end of every line (`-p` instead of `-P`) is accepted.

    Args:
        lines: The file, header first.
        needed: Required columns; others are returned as well.
        command: Command that prints such a table, for errors.

    Raises:
        InvalidInputError: there is no header, it lacks a column, or a row has too many or too few columns.
    """
    header: list[str] | None = None
    place = command
    for place, text in lines:
        if not text.strip():
            continue
        cells = text.split("|")
        if header is None:
            header = cells
            missing = [name for name in needed if name not in header]
            if missing:
                raise InvalidInputError(place, f"a header with {missing[0]}, as `{command}` prints it", text[:80])
        elif cells != header:
            if len(cells) != len(header):
                raise InvalidInputError(place, f"{len(header)} columns between |, as in the header", text[:80])
            yield place, dict(zip(header, cells, strict=True))
    if header is None:
        raise InvalidInputError(place, f"the header that `{command}` prints, got nothing")
