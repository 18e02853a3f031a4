"""Traces in files: CSV, plain or compressed, with a JSON of the same stem for what is not a fragment."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace, window

__all__ = ["HEADER", "Fragment", "Trace", "read_trace", "window", "write_trace"]

HEADER = ("node", "idle_from_s", "idle_until_s")
_Row = tuple[float, int, float, int]


def read_trace(path: Path) -> Trace:
    """Read `x.csv` or `x.csv.gz` and, where it exists, `x.json`.

    The CSV's header is `node,idle_from_s,idle_until_s`. The JSON may hold `nodes` (all nodes, in order), `duration_s`
    and `earliest_s`; without it, nodes come in the order in which they appear. Fragments of one node that touch are
    one fragment.

    Raises:
        InvalidInputError: the file can't be read as a trace; names file and line.
    """
    metadata_path = _metadata_path(path)
    metadata = _read_metadata(metadata_path)
    nodes = metadata.get("nodes")
    positions = {} if nodes is None else {name: index for index, name in enumerate(nodes)}
    earliest_s = metadata.get("earliest_s", 0.0)
    try:
        with path.open("rb") as file:
            content = io.BufferedReader(gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
            rows = _read_rows(content, path, positions, nodes is not None, earliest_s)
    except OSError as error:
        raise InvalidInputError(str(path), f"a readable trace ({error})") from error
    if not rows:
        raise InvalidInputError(f"{path}:2", "at least one idle fragment, got none")
    names = tuple(positions)
    fragments = _build(rows, names, path)
    duration_s = metadata.get("duration_s", max(fragment.idle_until_s for fragment in fragments))
    return Trace(fragments, names, duration_s, earliest_s)


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace for `read_trace`: `x.csv` or `x.csv.gz`, and `x.json` beside it.

    Raises:
        InvalidInputError: the name ends in neither.
        OSError: the files can't be written.
    """
    metadata = {"nodes": trace.nodes, "duration_s": trace.duration_s, "earliest_s": trace.earliest_s}
    _metadata_path(path).write_text(json.dumps(metadata) + "\n", encoding="utf-8")
    rows = (f"{entry.node},{_number(entry.idle_from_s)},{_number(entry.idle_until_s)}" for entry in trace.fragments)
    content = "\n".join((",".join(HEADER), *rows, "")).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _number(seconds: float) -> str:
    return str(int(seconds)) if float(seconds).is_integer() else repr(float(seconds))


def _metadata_path(path: Path) -> Path:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if plain.suffix == ".parquet":
        raise InvalidInputError(str(path), "a .csv or .csv.gz file (Parquet traces can't be read yet)")
    if plain.suffix != ".csv":
        raise InvalidInputError(str(path), "a name that ends in .csv or .csv.gz")
    return plain.with_suffix(".json")


def _read_metadata(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{path}:{error.lineno}", f"JSON ({error.msg})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(path), f"a readable JSON file ({error})") from error
    if not isinstance(found, dict):
        raise InvalidInputError(str(path), "a JSON object")
    nodes = found.get("nodes")
    if nodes is not None:
        named = isinstance(nodes, list) and all(isinstance(name, str) and name for name in nodes)
        if not named or len(set(nodes)) < len(nodes):
            raise InvalidInputError(f"{path}: nodes", "a list of names, each once")
    for key, at_most, meaning in (("duration_s", math.inf, "seconds"), ("earliest_s", 0.0, "seconds, at most 0")):
        value = found.get(key, 0.0)
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value > at_most or (key == "duration_s" and key in found and value <= 0):
            raise InvalidInputError(f"{path}: {key}", meaning if key != "duration_s" else "seconds, above 0", value)
    return found


def _read_rows(
    binary: Iterable[bytes], path: Path, positions: dict[str, int], closed: bool, earliest_s: float
) -> list[_Row]:
    """Rows as (begin, position of the node, end, line); adds nodes to `positions` unless that is closed."""
    reader = csv.reader(_whole_lines(binary, path), strict=True)
    rows: list[_Row] = []
    try:
        header = next(reader, None)
        if header is None:
            raise InvalidInputError(f"{path}:1", f"the header {','.join(HEADER)}, got an empty file")
        if tuple(header) != HEADER:
            raise InvalidInputError(f"{path}:1", f"the header {','.join(HEADER)}", ",".join(header))
        for row in reader:
            if not row:
                continue
            if len(row) != len(HEADER):
                raise InvalidInputError(_place(path, reader), f"{len(HEADER)} columns (is the line cut off?)", row)
            node, begin_text, end_text = row
            try:
                begin, end = float(begin_text), float(end_text)
            except ValueError:
                begin = end = math.nan
            if not earliest_s <= begin < end < math.inf:
                raise _bad_times(_place(path, reader), begin_text, end_text, earliest_s)
            position = positions.get(node)
            if position is None:
                if closed or not node or node != node.strip():
                    expected = "a node of the metadata's list" if closed else "the name of a node"
                    raise InvalidInputError(_place(path, reader), expected, node)
                position = positions[node] = len(positions)
            rows.append((begin, position, end, reader.line_num))
    except csv.Error as error:
        raise InvalidInputError(_place(path, reader), f"CSV ({error})") from error
    return rows


def _place(path: Path, reader: Any) -> str:
    return f"{path}:{reader.line_num}"


def _whole_lines(binary: Iterable[bytes], path: Path) -> Iterator[str]:
    """Lines as text.

    A last line without a line end is refused: the number at its end may have lost digits, and nothing else would tell.
    """
    number = 0
    line = "\n"
    try:
        for number, raw in enumerate(binary, 1):
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            if not line.endswith("\n"):
                raise InvalidInputError(
                    f"{path}:{number}", "a line end after the last row (is the file cut off?)", line[-80:]
                )
            yield line
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path}:{number}", "text in UTF-8") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InvalidInputError(f"{path}:{number + 1}", f"a complete gzip file ({error})") from error


def _bad_times(place: str, begin_text: str, end_text: str, earliest_s: float) -> InvalidInputError:
    times = []
    for column, text in zip(HEADER[1:], (begin_text, end_text), strict=True):
        try:
            times.append(float(text))
        except ValueError:
            return InvalidInputError(place, f"a number of seconds as {column}", text)
        if not math.isfinite(times[-1]):
            return InvalidInputError(place, f"a finite number of seconds as {column}", text)
    if times[0] < earliest_s:
        return InvalidInputError(place, f"idle_from_s at least {earliest_s:g}", begin_text)
    return InvalidInputError(place, f"idle_until_s above idle_from_s ({begin_text})", end_text)


def _build(rows: Iterable[_Row], names: Sequence[str], path: Path) -> tuple[Fragment, ...]:
    """Fragments in order; those of a node that touch are joined.

    Raises:
        InvalidInputError: two fragments of a node overlap.
    """
    fragments: list[Fragment] = []
    newest: dict[int, tuple[int, float, int]] = {}
    for begin, position, end, line in sorted(rows):
        index = len(fragments)
        before = newest.get(position)
        if before is None or before[1] < begin:
            fragments.append(Fragment(names[position], begin, end))
        elif before[1] == begin:
            index = before[0]
            fragments[index] = Fragment(names[position], fragments[index].idle_from_s, end)
        else:
            raise InvalidInputError(
                f"{path}:{max(line, before[2])}",
                f"no overlap of the fragments of node {names[position]} (with line {min(line, before[2])})",
            )
        newest[position] = (index, end, line)
    return tuple(fragments)
