"""Reads and writes traces: CSV, plain or compressed, or Parquet, with metadata in a JSON file beside it."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Fragment, Trace

HEADER = ("node", "idle_from_s", "idle_until_s")
_Row = tuple[float, int, float, int]


def read_trace(path: Path) -> Trace:
    """Read `x.csv`, `x.csv.gz` or `x.parquet` and, where it exists, `x.json`.

    The columns are `node,idle_from_s,idle_until_s`. The JSON may hold `nodes` (all nodes, in order), `duration_s`,
    `earliest_s`, `origin` and `present_s`; without it, nodes come in the order in which they appear. Fragments of one
    node that touch are one fragment.

    Raises:
        InvalidInputError: the file can't be read as a trace; names file and line.
    """
    metadata = read_metadata(path)
    nodes = metadata.get("nodes")
    positions = {} if nodes is None else {name: index for index, name in enumerate(nodes)}
    earliest_s = metadata.get("earliest_s", 0.0)
    in_parquet = path.suffix == ".parquet"
    try:
        if in_parquet:
            rows = _check_rows(read_parquet_rows(path, HEADER), path, positions, nodes is not None, earliest_s)
        else:
            with path.open("rb") as file:
                content = io.BufferedReader(gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
                rows = _read_rows(content, path, positions, nodes is not None, earliest_s)
    except OSError as error:
        raise InvalidInputError(str(path), f"a readable trace ({error})") from error
    if not rows:
        raise InvalidInputError(f"{path}" if in_parquet else f"{path}:2", "at least one idle fragment, got none")
    names = tuple(positions)
    fragments = _build(rows, names, path)
    duration_s = metadata.get("duration_s", max(fragment.idle_until_s for fragment in fragments))
    present_s = {
        name: (min(begin, duration_s), min(end, duration_s))
        for name, (begin, end) in metadata.get("present_s", {}).items()
    }
    return Trace(fragments, names, duration_s, earliest_s, metadata.get("origin"), present_s)


def write_trace(trace: Trace, path: Path, about: Mapping[str, object] | None = None) -> None:
    """Write a trace for `read_trace`: `x.csv`, `x.csv.gz` or `x.parquet`, and `x.json` beside it.

    Args:
        trace: What to write.
        path: Where to; its ending chooses the format.
        about: Further entries of the JSON, e.g. `source`.

    Raises:
        InvalidInputError: the name ends in none of these, or PyArrow is missing for Parquet.
        OSError: the files can't be written. Those that were there are as they were.
    """
    beside = metadata_path(path)
    metadata = {"nodes": trace.nodes, "duration_s": trace.duration_s, "earliest_s": trace.earliest_s}
    known = {"present_s": dict(trace.present_s)} if trace.present_s else {}
    dated = {} if trace.origin is None else {"origin": trace.origin}
    with ExitStack() as files:
        # Neither is there before both are whole.
        data, text = (files.enter_context(_replace_file(name)) for name in (path, beside))
        _write_rows(trace, path, data)
        text.write_text(json.dumps({**(about or {}), **metadata, **known, **dated}) + "\n", encoding="utf-8")


@contextmanager
def _replace_file(path: Path) -> Iterator[Path]:
    """A file that takes the place of another one if no error is raised; else it is gone."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_rows(trace: Trace, path: Path, to: Path) -> None:
    if path.suffix == ".parquet":
        columns = zip(*((entry.node, entry.idle_from_s, entry.idle_until_s) for entry in trace.fragments), strict=True)
        nodes, begins, ends = columns if trace.fragments else ((), (), ())
        write_parquet_rows(to, HEADER, nodes, begins, ends)
    else:
        rows = (f"{entry.node},{_number(entry.idle_from_s)},{_number(entry.idle_until_s)}" for entry in trace.fragments)
        content = "\n".join((",".join(HEADER), *rows, "")).encode()
        to.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _number(seconds: float) -> str:
    return str(int(seconds)) if float(seconds).is_integer() else repr(float(seconds))


def _check_rows(
    table: Iterable[tuple[object, object, object]],
    path: Path,
    positions: dict[str, int],
    closed: bool,
    earliest_s: float,
) -> list[_Row]:
    """As `_read_rows`, from values."""
    rows: list[_Row] = []
    for number, (node, begin, end) in enumerate(table, 1):
        place = f"{path}: row {number}"
        if not isinstance(node, str):
            raise InvalidInputError(place, "the name of a node", node)
        if not (
            isinstance(begin, int | float) and isinstance(end, int | float) and earliest_s <= begin < end < math.inf
        ):
            raise _bad_times(place, str(begin), str(end), earliest_s)
        rows.append((begin, _position(node, positions, closed, place), end, number))
    return rows


def _position(node: str, positions: dict[str, int], closed: bool, place: str) -> int:
    position = positions.get(node)
    if position is None:
        if closed or not node or node != node.strip():
            raise InvalidInputError(place, "a node of the metadata's list" if closed else "the name of a node", node)
        position = positions[node] = len(positions)
    return position


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
                position = _position(node, positions, closed, _place(path, reader))
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
    separator, word = (": row ", "row") if path.suffix == ".parquet" else (":", "line")
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
                f"{path}{separator}{max(line, before[2])}",
                f"no overlap of the fragments of node {names[position]} (with {word} {min(line, before[2])})",
            )
        newest[position] = (index, end, line)
    return tuple(fragments)


def read_parquet_rows(path: Path, columns: Sequence[str]) -> list[tuple[object, object, object]]:
    """All rows of a file with three columns: a name and two numbers. Values may be None.

    Raises:
        InvalidInputError: PyArrow is missing, the file isn't Parquet, or its columns are others.
        OSError: the file can't be opened.
    """
    arrow, parquet = _arrow(path)
    with path.open("rb") as file:
        try:
            table = parquet.ParquetFile(file).read()
        except (arrow.ArrowException, OSError) as error:
            raise InvalidInputError(str(path), f"a Parquet file ({error})") from error
    if table.column_names != list(columns):
        raise InvalidInputError(str(path), f"the columns {','.join(columns)}", ",".join(table.column_names))
    nodes, begins, ends = (table.column(name).to_pylist() for name in columns)
    return list(zip(nodes, begins, ends, strict=True))


def write_parquet_rows(
    path: Path, columns: Sequence[str], nodes: Sequence[str], begins: Sequence[float], ends: Sequence[float]
) -> None:
    """Write what `read_parquet_rows` reads; the same rows give the same bytes.

    Raises:
        InvalidInputError: PyArrow is missing.
        OSError: the file can't be written.
    """
    arrow, parquet = _arrow(path)
    arrays = (
        arrow.array(nodes, arrow.string()),
        arrow.array(begins, arrow.float64()),
        arrow.array(ends, arrow.float64()),
    )
    with path.open("wb") as file:
        parquet.write_table(arrow.Table.from_arrays(list(arrays), names=list(columns)), file, compression="zstd")


def _arrow(path: Path) -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            str(path), "a .csv or .csv.gz file, or PyArrow installed to use Parquet (pip install pyarrow)"
        ) from error


def metadata_path(path: Path) -> Path:
    """Path of the JSON file of a trace.

    Raises:
        InvalidInputError: the name of the trace does not end in .csv, .csv.gz or .parquet.
    """
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if plain.suffix != ".csv" and path.suffix != ".parquet":
        raise InvalidInputError(str(path), "a name that ends in .csv, .csv.gz or .parquet")
    return plain.with_suffix(".json")


def read_metadata(trace_path: Path) -> dict[str, Any]:
    """The content of the JSON file of a trace; empty if there is none.

    Raises:
        InvalidInputError: the name of the trace has another ending, or the JSON can't be used.
    """
    path = metadata_path(trace_path)
    if not path.exists():
        return {}
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{path}:{error.lineno}", f"JSON ({error.msg})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(path), f"a readable JSON file ({error})") from error
    if not isinstance(metadata, dict):
        raise InvalidInputError(str(path), "a JSON object")
    nodes = metadata.get("nodes")
    if nodes is not None:
        named = isinstance(nodes, list) and all(isinstance(name, str) and name for name in nodes)
        if not named or len(set(nodes)) < len(nodes):
            raise InvalidInputError(f"{path}: nodes", "a list of names, each once")
    for key, at_most, meaning in (("duration_s", math.inf, "seconds"), ("earliest_s", 0.0, "seconds, at most 0")):
        value = metadata.get(key, 0.0)
        if not _is_number(value) or value > at_most or (key == "duration_s" and key in metadata and value <= 0):
            raise InvalidInputError(f"{path}: {key}", meaning if key != "duration_s" else "seconds, above 0", value)
    _check_origin(path, metadata)
    _check_presence(path, metadata)
    return metadata


def _check_origin(path: Path, metadata: dict[str, Any]) -> None:
    if "origin" not in metadata:
        return
    try:
        datetime.fromisoformat(metadata["origin"])
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{path}: origin", "a time such as 2021-02-10T20:21:15", metadata["origin"]) from error


def _check_presence(path: Path, metadata: dict[str, Any]) -> None:
    present = metadata.get("present_s", {})
    if not isinstance(present, dict):
        raise InvalidInputError(f"{path}: present_s", "an object of nodes and their seconds")
    known = set(metadata.get("nodes", ()))
    for name, seconds in present.items():
        if name not in known:
            raise InvalidInputError(f"{path}: present_s", "nodes of the file's list", name)
        numbers = isinstance(seconds, list) and len(seconds) == 2 and all(_is_number(value) for value in seconds)
        if not numbers or not 0 <= seconds[0] <= seconds[1]:
            raise InvalidInputError(f"{path}: present_s: {name}", "two seconds in order, at least 0", seconds)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
