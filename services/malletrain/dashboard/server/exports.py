"""The data of each figure, for whoever exports them."""

from __future__ import annotations

import math

from malletrain.dashboard.figures import columns
from malletrain.dashboard.figures.columns import Columns
from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages import views
from malletrain.dashboard.pages.compare_page import compared_columns
from malletrain.dashboard.pages.job_answers import journal_of, metrics_of, profile_of
from malletrain.dashboard.pages.job_page import metrics_columns
from malletrain.dashboard.pages.page import SharedData
from malletrain.dashboard.pages.plan_page import PlanPage
from malletrain.dashboard.pages.selection import Selection
from malletrain.dashboard.pages.usage_page import rows_in, usage_of
from malletrain.dashboard.pages.what_if import course_columns
from malletrain.observer import intake
from malletrain.observer.history import History
from malletrain.observer.usage import MONTHLY, billing_columns


async def data_of(shared: SharedData, viewer: Viewer, page: str, name: str, selection: Selection) -> Columns | None:
    """Data of a figure; of one over time in the shown period, at seconds since the epoch.

    Args:
        shared: What all viewers share.
        viewer: Who asks; what not everybody may see is asked for in the viewer's name.
        page: Name of the page.
        name: Name of the figure.
        selection: What is looked at.

    Returns:
        Columns; None where there is no such figure.

    Raises:
        grpc.aio.AioRpcError: a service refuses, or does not answer.
    """
    history = shared.watched.history
    match page:
        case "now":
            data = _of_now(history, name, selection)
        case "job":
            data = await _of_job(shared, viewer, name, selection.job)
        case "compare" if name == "compare":
            return await compared_columns(shared, viewer, selection) if selection.group else None
        case "plan" if name == "worth":
            data = _worth(shared, selection)
        case "usage" if name in ("monthly", "all"):
            return await _usage(shared, viewer, selection.month if name == "monthly" else "")
        case "week" if name == "course":
            return _course(shared, selection)
        case "nodes" if name in ("survival", "stay"):
            data = columns.survival_columns(*views.idle_lengths(history))
        case _:
            data = None
    return columns.in_period(data, *selection.period(history.now)) if data is not None else None


def _of_now(history: History, name: str, selection: Selection) -> Columns | None:
    match name:
        case "nodes":
            since, until = selection.period(history.now)
            fragments = [item for item in history.fragments if item.start < until and (item.end or until) > since]
            return {
                "node": [item.node for item in fragments],
                "job": [" ".join(item.jobs) for item in fragments],
                "from_unix_s": [item.start for item in fragments],
                "until_unix_s": [item.end if item.end is not None else "" for item in fragments],
            }
        case "use":
            return columns.minute_columns(history.minutes, history.now)
        case "samples":
            return columns.sample_columns(history.utilization)
        case "releases":
            return columns.release_columns(history)
    return None


async def _of_job(shared: SharedData, viewer: Viewer, name: str, job_id: str) -> Columns | None:
    history = shared.watched.history
    match name:
        case "metrics":
            return metrics_columns(await metrics_of(shared.watcher, viewer, job_id, 0)) if job_id else None
        case "scale":
            rows = await journal_of(shared.watcher, viewer, job_id) if job_id else ()
            return columns.change_columns(map(intake.held_fact, rows))
        case "rate":
            return columns.rate_columns(history.rates.get(job_id, ()))
        case "curve":
            known = history.curves.get(job_id)
            if known is None and job_id:
                known = await profile_of(shared.watcher, viewer, job_id)
            return columns.curve_rows(known)
        case "stalls":
            return columns.stall_columns(history.stalls.get(job_id, ()))
    return None


async def _usage(shared: SharedData, viewer: Viewer, month: str) -> Columns:
    parts = await usage_of(shared.watcher, viewer, MONTHLY, month)
    return billing_columns(rows_in(parts), parts[-1].currency)


def _worth(shared: SharedData, selection: Selection) -> Columns:
    plan = PlanPage.known_to(shared, selection.plan)
    values = PlanPage.values_in(shared, plan) if plan is not None else None
    known = values.jobs if values is not None else ()
    return {
        "job": [value.job_id for value in known],
        "nodes": [value.nodes for value in known],
        "one_more": [value.one_more for value in known],
        "one_fewer": [value.one_fewer for value in known],
    }


def _course(shared: SharedData, selection: Selection) -> Columns | None:
    comparison = shared.replays.result_of(selection.what_if) if selection.what_if is not None else None
    return columns.in_period(course_columns(comparison), 0.0, math.inf) if comparison is not None else None
