"""The page Usage: who used what, asked for in the viewer's name. Users see their own usage."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages import markup, views
from malletrain.dashboard.pages.job_answers import job_manager, no_answer_in_words
from malletrain.dashboard.pages.markup import Cell, Regions, Row, Section
from malletrain.dashboard.pages.page import Page
from malletrain.observer.usage import HOUR_SECONDS, MONTHLY, month_at, month_bounds, sum_rows
from malletrain.observer.watching import Watcher
from malletrain.v1 import job_manager_pb2

_ASK_EVERY_S, _ASK_MONTHS_EVERY_S = 30.0, 600.0
_DEADLINE_S = 30.0
_MONTHS = 24
_FIGURES = ("node-hours", "of all", "lost", "GPU-hours", "samples", "preemptions", "charge")
_NUMBERS = tuple(range(1, len(_FIGURES) + 1))
_SECTIONS = (
    Section("links", "months"),
    Section("text", "notes"),
    Section("tiles", "totals"),
    Section(
        "table",
        "owners",
        "By owner",
        "A job uses the nodes that it is commanded to use, as its journal names them. Lost: nothing trained, since "
        "workers started, stood still or ended.",
        ("owner", *_FIGURES),
        _NUMBERS,
    ),
    Section("table", "projects", "By project", "", ("project", *_FIGURES), _NUMBERS),
    Section("table", "by-month", "By month", "In UTC, whatever month is chosen.", ("month", *_FIGURES), _NUMBERS),
    Section("links", "export"),
)


@dataclass(frozen=True)
class UsageAnswer:
    """What was answered in the viewer's name.

    Attributes:
        rows: Usage of the chosen month, by owner and project.
        months: Usage by month.
        currency: Currency of the charges.
        until: Until when usage is counted, in seconds since the epoch; 0 before the first answer.
        error: Why there is no answer; empty if there is.
    """

    rows: tuple[job_manager_pb2.UsageRow, ...] = ()
    months: tuple[job_manager_pb2.UsageRow, ...] = ()
    currency: str = ""
    until: float = 0.0
    error: str = ""


class UsagePage(Page):
    """What owners and projects have used, month by month, and what it costs."""

    name = "usage"
    title = "Usage"
    sections = _SECTIONS

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.title = f"Usage in {self.month}"
        self._answer = UsageAnswer()
        self._asked = self._months_asked = 0.0
        self._version = 0

    def own_key(self) -> Hashable:
        """The answers are this viewer's alone."""
        return (id(self), self._version)

    @property
    def month(self) -> str:
        """The month that is shown, as 2026-07."""
        return self.selection.month or month_at(self.shared.watcher.now())

    def regions(self) -> Regions:
        """The parts that change."""
        answer = self._answer
        total = sum_rows(answer.rows).get("", job_manager_pb2.UsageRow())
        known = sorted({row.month for row in answer.months} | {self.month}, reverse=True)[:_MONTHS]
        months = [(month, self.selection.link("usage", month=month), month == self.month) for month in known]
        export = [
            ("This month as CSV", self.selection.link("csv/usage/monthly", month=self.month), False),
            ("All months as CSV", self.selection.link("csv/usage/all"), False),
        ]
        by_month = sum_rows(answer.months, lambda row: row.month)
        newest_first = {month: by_month[month] for month in sorted(by_month, reverse=True)}
        return Regions(
            {
                "months": markup.links(months),
                "totals": markup.tiles(_tiles(total, answer.currency)) if answer.until else "",
                "export": markup.links(export),
                "notes": markup.paragraphs(self._notes()),
            },
            {
                "owners": _rows("owner", sum_rows(answer.rows, lambda row: row.owner), total),
                "projects": _rows("project", sum_rows(answer.rows, lambda row: row.project or "no project"), total),
                "by-month": _rows("month", newest_first, sum_rows(answer.months).get("", job_manager_pb2.UsageRow())),
            },
        )

    def _notes(self) -> list[str]:
        answer = self._answer
        if answer.error:
            return [answer.error]
        if not answer.until:
            return ["asking …"]
        whose = "Your own usage" if self.viewer.role == "user" else "Usage of all"
        return [f"{whose}, until {views.date_and_time(answer.until)}."]

    async def ask(self) -> None:
        """Ask for the chosen month every half minute, and for the sums of all months, which read the most, seldom."""
        now = self.shared.watcher.now()
        if now - self._asked < _ASK_EVERY_S:
            return
        self._asked, watcher = now, self.shared.watcher
        try:
            chosen = await usage_of(watcher, self.viewer, MONTHLY[1:], self.month)
            months = self._answer.months
            if now - self._months_asked >= _ASK_MONTHS_EVERY_S:
                months = tuple(rows_in(await usage_of(watcher, self.viewer, MONTHLY[:1])))
                self._months_asked = now
        except grpc.aio.AioRpcError as error:
            answer = UsageAnswer(error=f"{no_answer_in_words(error)}.")
            self._months_asked = 0.0
        else:
            last = chosen[-1]
            answer = UsageAnswer(tuple(rows_in(chosen)), months, last.currency, last.as_of_time.ToNanoseconds() / 1e9)
        if answer != self._answer:
            self._answer, self._version = answer, self._version + 1

    def _spans(self) -> str:
        """The month is chosen by the links."""
        return ""


async def usage_of(
    watcher: Watcher, viewer: Viewer, keys: Sequence[job_manager_pb2.UsageKey.ValueType], month: str = ""
) -> list[job_manager_pb2.GetUsageResponse]:
    """What JobManager answers a viewer.

    Args:
        watcher: Knows the services.
        viewer: Who asks.
        keys: By what usage is added up.
        month: Only usage of this month; empty: of all.

    Raises:
        grpc.aio.AioRpcError: JobManager refuses, or does not answer.
    """
    since, until = month_bounds(month) if month else ("", "")
    request = job_manager_pb2.GetUsageRequest(group_by=keys, since=since, until=until)
    stream = job_manager(watcher).GetUsage(request, metadata=viewer.metadata, timeout=_DEADLINE_S)
    return [part async for part in stream]


def rows_in(parts: Iterable[job_manager_pb2.GetUsageResponse]) -> list[job_manager_pb2.UsageRow]:
    """The rows of an answer."""
    return [row for part in parts for row in part.rows]


def _tiles(total: job_manager_pb2.UsageRow, currency: str) -> list[tuple[str, str, str]]:
    lost = total.lost_node_seconds / total.node_seconds if total.node_seconds else None
    tiles = [
        ("Node-hours", markup.number(total.node_seconds / HOUR_SECONDS, 2), f"{markup.percent(lost)} of them lost"),
        ("GPU-hours", _gpu_hours(total), "where the number of a node's GPUs is known"),
        ("Preemptions", markup.number(total.preemptions), "events at which nodes were taken from jobs"),
    ]
    if total.full_charge:
        full = f"{markup.number(total.full_charge, 2)} without the discount"
        tiles.append((f"Charge in {currency}" if currency else "Charge", markup.number(total.charge, 2), full))
    return tiles


def _gpu_hours(row: job_manager_pb2.UsageRow) -> str:
    return markup.number(row.gpu_seconds / HOUR_SECONDS if row.gpu_seconds else None, 2)


def _rows(kind: str, entries: dict[str, job_manager_pb2.UsageRow], total: job_manager_pb2.UsageRow) -> tuple[Row, ...]:
    return tuple(
        Row(f"{kind}-{place}", (Cell(name), *_cells(row, total)))
        for place, (name, row) in enumerate(list(entries.items())[: views.MAX_ROWS])
    )


def _cells(row: job_manager_pb2.UsageRow, total: job_manager_pb2.UsageRow) -> tuple[Cell, ...]:
    share = row.node_seconds / total.node_seconds if total.node_seconds else None
    lost = row.lost_node_seconds / row.node_seconds if row.node_seconds else None
    charge = markup.number(row.charge if row.full_charge else None, 2)
    return (
        Cell(markup.number(row.node_seconds / HOUR_SECONDS, 2), number=True),
        Cell(markup.percent(share), number=True, share=share),
        Cell(markup.percent(lost), number=True),
        Cell(_gpu_hours(row), number=True),
        Cell(markup.number(row.samples), number=True),
        Cell(markup.number(row.preemptions), number=True),
        Cell(charge, number=True),
    )
