"""The JSON file beside a trace: `nodes`, `duration_s`, `earliest_s`, `origin`, `present_s`, and any other keys."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

from malletrain.runtime.errors import InvalidInputError


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
        if not _is_number(value) or value > at_most or (key == "duration_s" and key in found and value <= 0):
            raise InvalidInputError(f"{path}: {key}", meaning if key != "duration_s" else "seconds, above 0", value)
    _check_origin(path, found)
    _check_presence(path, found)
    return found


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
