"""The data of each figure, for whoever exports them."""

from __future__ import annotations

import math

from malletrain.dashboard import columns, intake, views
from malletrain.dashboard.board import Board
from malletrain.dashboard.columns import Columns
from malletrain.dashboard.history import History
from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.job_answers import journal_of, profile_of
from malletrain.dashboard.plan_page import PlanPage
from malletrain.dashboard.selection import Selection


async def data_of(board: Board, viewer: Viewer, page: str, name: str, selection: Selection) -> Columns | None:
    """Data of a figure; of one over time in the shown period, at seconds since the epoch.

    Args:
        board: What all viewers share.
        viewer: Who asks; what not everybody may see is asked for in the viewer's name.
        page: Name of the page.
        name: Name of the figure.
        selection: What is looked at.

    Returns:
        Columns; None where there is no such figure.

    Raises:
        grpc.aio.AioRpcError: a service refuses, or does not answer.
    """
    history = board.watched.history
    match page:
        case "now":
            found = _of_now(history, name, selection)
        case "job":
            found = await _of_job(board, viewer, name, selection.job)
        case "plan" if name == "worth":
            found = _worth(board, selection)
        case "week" if name == "course":
            return _course(board, selection)
        case "nodes" if name in ("survival", "stay"):
            found = columns.survival_columns(*views.idle_lengths(history))
        case _:
            found = None
    return columns.in_period(found, *selection.period(history.now)) if found is not None else None


def _of_now(history: History, name: str, selection: Selection) -> Columns | None:
    match name:
        case "nodes":
            since, until = selection.period(history.now)
            shown = [item for item in history.fragments if item.start < until and (item.end or until) > since]
            return {
                "node": [item.node for item in shown],
                "job": [" ".join(item.jobs) for item in shown],
                "from_unix_s": [item.start for item in shown],
                "until_unix_s": [item.end if item.end is not None else "" for item in shown],
            }
        case "use":
            return columns.minute_columns(history.minutes, history.now)
        case "samples":
            return columns.sample_columns(history.minutes)
        case "releases":
            return columns.release_columns(history)
    return None


async def _of_job(board: Board, viewer: Viewer, name: str, job_id: str) -> Columns | None:
    history = board.watched.history
    match name:
        case "scale":
            rows = await journal_of(board.watcher, viewer, job_id) if job_id else ()
            return columns.change_columns(map(intake.held_fact, rows))
        case "rate":
            return columns.rate_columns(history.rates.get(job_id, ()))
        case "curve":
            known = history.curves.get(job_id)
            if known is None and job_id:
                known = await profile_of(board.watcher, viewer, job_id)
            return columns.curve_rows(known)
        case "stalls":
            return columns.stall_columns(history.stalls.get(job_id, ()))
    return None


def _worth(board: Board, selection: Selection) -> Columns:
    plan = PlanPage.known_to(board, selection.plan)
    values = PlanPage.values_in(board, plan) if plan is not None else None
    known = values.jobs if values is not None else ()
    return {
        "job": [value.job_id for value in known],
        "nodes": [value.nodes for value in known],
        "one_more": [value.one_more for value in known],
        "one_fewer": [value.one_fewer for value in known],
    }


def _course(board: Board, selection: Selection) -> Columns | None:
    found = board.replays.found(selection.what_if) if selection.what_if is not None else None
    return columns.in_period(found.columns(), 0.0, math.inf) if found is not None else None
