"""What the page Usage says, and for whom it asks."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from malletrain.common.csv_text import as_csv
from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages import usage_page
from malletrain.dashboard.pages.selection import Selection
from malletrain.dashboard.pages.usage_page import UsagePage
from malletrain.observer.history import History
from malletrain.observer.usage import billing_columns, month_at, month_bounds, sum_rows
from malletrain.v1 import job_manager_pb2 as pb

NOW = 1_785_000_000.0
"""In July 2026."""
ROWS = [
    pb.UsageRow(
        owner="ada", project="bio", node_seconds=7200, lost_node_seconds=1800, samples=10, charge=1, full_charge=4
    ),
    pb.UsageRow(owner="ada", project="", node_seconds=3600, samples=-5, preemptions=2),
    pb.UsageRow(owner="<img src=x>", project="bio", node_seconds=3600, gpu_seconds=14400),
]


class Asked:
    """Stands in for JobManager."""

    def __init__(self, error: grpc.StatusCode | None = None) -> None:
        self.requests: list[tuple[pb.GetUsageRequest, Any]] = []
        self.error = error

    async def GetUsage(self, request: pb.GetUsageRequest, metadata: Any, timeout: float) -> Any:
        del timeout
        self.requests.append((request, metadata))
        if self.error is not None:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self.error, nothing, nothing, "details")
        months = [pb.UsageRow(month="2026-06", node_seconds=3600), pb.UsageRow(month="2026-07", node_seconds=14400)]
        rows = months if list(request.group_by) == [pb.USAGE_KEY_MONTH] else ROWS
        for row in rows:
            answer = pb.GetUsageResponse(rows=[row], currency="EUR")
            answer.as_of_time.FromSeconds(int(NOW))
            yield answer


def viewer(user: str, role: str) -> Viewer:
    return Viewer(user, role, "id", 2 * NOW, f"token of {user}")


def page_of(
    monkeypatch: pytest.MonkeyPatch, asked: Asked, who: Viewer, selection: Selection | None = None
) -> UsagePage:
    monkeypatch.setattr(usage_page, "job_manager", lambda _: asked)
    shared = SimpleNamespace(watcher=SimpleNamespace(now=lambda: NOW), history=History(began=NOW, now=NOW))
    return UsagePage(cast(Any, shared), who, selection or Selection(), "light")


def texts(rows: Sequence[Any], column: int) -> list[str]:
    return [row.cells[column].text for row in rows]


def test_usage_is_added_up_by_owner_project_and_month(monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(monkeypatch, Asked(), viewer("eve", "viewer"))
    asyncio.run(page.ask())
    found = page.regions()
    assert texts(found.tables["owners"], 0) == ["ada", "<img src=x>"]
    assert texts(found.tables["owners"], 1) == ["3.00", "1.00"]
    assert texts(found.tables["projects"], 0) == ["bio", "no project"]
    assert texts(found.tables["projects"], 4) == ["4.00", "–"]
    assert texts(found.tables["by-month"], 0) == ["2026-07", "2026-06"]
    assert "Charge in EUR" in found.texts["totals"]
    assert "Usage of all, until 2026-07-25" in found.texts["notes"]
    assert "month=2026-06" in found.texts["months"]
    assert "/csv/usage/monthly?month=2026-07" in found.texts["export"]


def test_it_is_asked_for_in_the_name_of_the_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    page = page_of(monkeypatch, asked, viewer("ada", "user"), Selection(month="2026-02"))
    before = page.own_key()
    asyncio.run(page.ask())
    assert [metadata for _, metadata in asked.requests] == [(("authorization", "Bearer token of ada"),)] * 2
    assert [(request.since, request.until) for request, _ in asked.requests] == [("2026-02-01", "2026-03-01"), ("", "")]
    assert page.own_key() != before
    assert page.own_key() != page_of(monkeypatch, asked, viewer("bob", "user")).own_key()
    assert "Your own usage" in page.regions().texts["notes"]
    asyncio.run(page.ask())
    assert len(asked.requests) == 2


def test_the_sums_of_all_months_are_asked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    page = page_of(monkeypatch, asked, viewer("eve", "viewer"))
    for minute in range(21):
        monkeypatch.setattr(page.shared.watcher, "now", lambda minute=minute: NOW + 60.0 * minute)
        asyncio.run(page.ask())
        assert [row.cells[0].text for row in page.regions().tables["by-month"]] == ["2026-07", "2026-06"]
    assert [len(request.group_by) for request, _ in asked.requests].count(1) == 3


@pytest.mark.parametrize(
    ("code", "expected"),
    [(grpc.StatusCode.UNAVAILABLE, "does not answer"), (grpc.StatusCode.UNIMPLEMENTED, "does not know this question")],
)
def test_a_job_manager_that_does_not_tell_is_no_usage_of_zero(
    monkeypatch: pytest.MonkeyPatch, code: grpc.StatusCode, expected: str
) -> None:
    page = page_of(monkeypatch, Asked(code), viewer("eve", "viewer"))
    asyncio.run(page.ask())
    found = page.regions()
    assert expected in found.texts["notes"]
    assert found.texts["totals"] == ""


@pytest.mark.parametrize("text", ["2026-13", "1969-12", "9999-12", "2026-07\n", "../..", "2026-7"])
def test_a_month_that_is_none_counts_as_absent(text: str) -> None:
    assert Selection.of({"month": [text.encode()]}).month == ""


def test_an_address_keeps_its_month() -> None:
    selection = Selection.of({"month": [b"2026-07"]})
    assert selection.month == "2026-07"
    assert selection.link("usage") == "/usage?month=2026-07"


def test_the_csv_of_billing() -> None:
    rows = [*ROWS, pb.UsageRow(owner="@sum", project="p", month="2026-07")]
    found = list(csv.DictReader(io.StringIO(as_csv(billing_columns(rows, "EUR")))))
    assert [entry["owner"] for entry in found] == ["ada", "ada", "<img src=x>", "'@sum"]
    assert found[0]["node_hours"] == "2.000000"
    assert found[1]["samples"] == "-5"


def test_sums_and_months() -> None:
    total = sum_rows(ROWS)[""]
    assert (total.node_seconds, total.samples, total.preemptions) == (14400.0, 5, 2)
    assert month_bounds("2026-12") == ("2026-12-01", "2027-01-01")
    assert month_bounds("2024-02") == ("2024-02-01", "2024-03-01")
    assert month_at(NOW) == "2026-07"
