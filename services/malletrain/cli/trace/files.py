"""Writes traces and describes what was written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace
from malletrain.scavenger.trace_files import write_trace

HOUR_S = 3600.0


def save_trace(trace: Trace, out: Path, about: Mapping[str, object] | None = None) -> None:
    """Write a trace to `--out`.

    Raises:
        InvalidInputError: the file can't be written.
    """
    try:
        write_trace(trace, out, about)
    except OSError as error:
        raise InvalidInputError("--out", f"a file that can be written ({error})", str(out)) from error


def summary(trace: Trace, out: Path) -> str:
    """Describe a written trace in one line."""
    idle_hours = sum(fragment.length_s for fragment in trace.fragments) / HOUR_S
    share = idle_hours / (trace.node_s / HOUR_S)
    return f"{out}: {len(trace.fragments)} idle fragments, {idle_hours:.1f} node-hours ({share:.1%} idle)"
