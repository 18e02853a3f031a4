"""W3C Trace Context: which trace of distributed tracing something belongs to, as text between processes."""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER = "traceparent"
"""Key of gRPC metadata and of the launch file."""
_PATTERN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceContext:
    """One span, as others name it.

    Attributes:
        trace_id: 32 hexadecimal digits, not all 0.
        span_id: 16 hexadecimal digits, not all 0.
        sampled: Whether the spans of its trace are recorded.
    """

    trace_id: str
    span_id: str
    sampled: bool

    @property
    def traceparent(self) -> str:
        """The value of the header `traceparent`, as W3C Trace Context defines it."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def parse_traceparent(text: object) -> TraceContext | None:
    """The context that a text names; None if it names none: what others send is never an error."""
    match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    trace_id, span_id, flags = match.groups()
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))
