"""What a viewer has chosen to look at, as it stands in the address of a page, and the viewer's time zone. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from malletrain.dashboard.pages.what_if import WhatIf

ZONE_COOKIE = "zone"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{0,63}\Z")
_shown: ContextVar[tzinfo] = ContextVar("shown zone", default=UTC)


@lru_cache(maxsize=256)
def zone_named(name: str) -> tzinfo:
    """The zone of a name as browsers know it, such as `Europe/Berlin`; UTC if there is none here."""
    if not _NAME.match(name):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # there is no such file, or it is none of a zone
        return UTC


@contextmanager
def shown_in(zone: tzinfo) -> Iterator[None]:
    """Have times written in a zone. Nothing may be awaited inside."""
    before = _shown.set(zone)
    try:
        yield
    finally:
        _shown.reset(before)


def at(time: float) -> datetime:
    """A time in the zone in which times are written now.

    Args:
        time: In seconds since the epoch.
    """
    return datetime.fromtimestamp(time, _shown.get())


def zone_in_words(time: float) -> str:
    """The zone in which times are written now, as one says it at a time, such as `CET`."""
    return at(time).tzname() or "UTC"


SPANS = {"15 min": 900.0, "1 h": 3600.0, "6 h": 21600.0, "24 h": 86400.0}
"""Spans of time that the pages offer, in seconds."""
_DEFAULT_SPAN = 3600.0
_JOB = re.compile(r"j[0-9]{1,18}\Z")
_TEXT = re.compile(r"[^\x00-\x1f\x7f]{1,256}\Z")
_MONTH = re.compile(r"(19[789][0-9]|2[0-9]{3})-(0[1-9]|1[0-2])\Z")
_NODE = re.compile(r"[^\s\x00-\x1f](?:[^\x00-\x1f]{0,254}[^\s\x00-\x1f])?\Z")


@dataclass(frozen=True)
class Selection:
    """What a page shows: job, node, plan, period and filters, as its address names them.

    Attributes:
        job: Identifier of a job; empty: none.
        node: Name of a node; empty: none.
        plan: Generation of a plan; 0: the newest.
        span: Length of the period that is shown, in seconds.
        until: Its end, in seconds since the epoch; None: now, and it moves on.
        what_if: With which settings the past is replayed; None: none was chosen.
        month: A month, as 2026-07; empty: the present one.
        group: An array, a fleet, or the name of a job or a search, whose jobs are compared; empty: none.
        owner: Whose jobs of the group; empty: those of all, the viewer's first.
        metric: Name of what they are compared by; empty: the usual one.
        span_chosen: Whether the viewer has chosen the span.
    """

    job: str = ""
    node: str = ""
    plan: int = 0
    span: float = _DEFAULT_SPAN
    until: float | None = None
    what_if: WhatIf | None = None
    month: str = ""
    group: str = ""
    owner: str = ""
    metric: str = ""
    span_chosen: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Sequence[bytes]]) -> Selection:
        """From the arguments of an address. What is not valid counts as absent: addresses are typed by hand."""
        text = {name: values[-1].decode("utf-8", "replace") for name, values in arguments.items() if values}
        job, node = text.get("job", ""), text.get("node", "")
        plan, group, metric = text.get("plan", ""), text.get("group", ""), text.get("metric", "")
        owner = text.get("owner", "")
        span, until = _number(text.get("span", "")), _number(text.get("until", ""))
        return cls(
            job if _JOB.match(job) else "",
            node if _NODE.match(node) else "",
            int(plan) if plan.isascii() and plan.isdecimal() and len(plan) <= 18 else 0,
            min(max(span, 10.0), 86400.0) if span is not None else _DEFAULT_SPAN,
            until if until is not None and until > 0 else None,
            WhatIf.of(text),
            text["month"] if _MONTH.match(text.get("month", "")) else "",
            group if _TEXT.match(group) else "",
            owner if _TEXT.match(owner) else "",
            metric if _TEXT.match(metric) else "",
            span is not None,
        )

    def fitted(self, begin: float, now: float) -> Selection:
        """The selection with the shortest span that shows all the past, unless a span was chosen or is shorter.

        Args:
            begin: When what is known begins, in seconds since the epoch.
            now: Seconds since the epoch.
        """
        if self.span_chosen or self.until is not None:
            return self
        fitting = (span for span in SPANS.values() if span >= now - begin)
        return replace(self, span=min(next(fitting, self.span), self.span))

    def period(self, now: float) -> tuple[float, float]:
        """Begin and end of what is shown, in seconds since the epoch."""
        until = now if self.until is None else min(self.until, now)
        return until - self.span, until

    def link(self, page: str, **changes: Any) -> str:
        """Address of a page with the same selection, but for some changes."""
        query = urlencode(self.arguments(**changes))
        return f"/{page}?{query}" if query else f"/{page}"

    def arguments(self, **changes: Any) -> dict[str, str]:
        """Arguments of an address that stand for the selection, but for some changes."""
        chosen = replace(self, **changes)
        span_chosen = chosen.span_chosen or "span" in changes
        arguments = {
            "job": chosen.job,
            "node": chosen.node,
            "plan": str(chosen.plan or ""),
            "span": f"{chosen.span:g}" if span_chosen or chosen.until is not None else "",
            "until": f"{chosen.until:.0f}" if chosen.until is not None else "",
            "month": chosen.month,
            "group": chosen.group,
            "owner": chosen.owner,
            "metric": chosen.metric,
        }
        if chosen.what_if is not None:
            arguments |= chosen.what_if.arguments()
        return {name: value for name, value in arguments.items() if value}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value < 1e11 else None
