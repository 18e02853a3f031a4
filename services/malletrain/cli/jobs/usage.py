"""`malletrain usage`: who used what."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import grpc
import typer

from malletrain.cli.jobs.jobs import own_name
from malletrain.cli.shared.output import JsonOption, print_json, print_table, to_dict
from malletrain.cli.shared.stubs import ServiceStubs, connect
from malletrain.common.csv_text import as_csv
from malletrain.observer.usage import HOUR_SECONDS, MONTHLY, billing_columns, cut_in_words, sum_rows
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.v1 import job_manager_pb2 as pb

_SECONDS = 90.0
"""Longer than other calls: the usage of years may have to be added up."""
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])\Z")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")


_NAMES: Mapping[pb.UsageKey.ValueType, tuple[str, Callable[[pb.UsageRow], str]]] = {
    pb.USAGE_KEY_MONTH: ("month", lambda row: row.month),
    pb.USAGE_KEY_OWNER: ("owner", lambda row: row.owner),
    pb.USAGE_KEY_PROJECT: ("project", lambda row: row.project or "-"),
    pb.USAGE_KEY_JOB: ("job", lambda row: row.job_id or "no longer kept"),
}
"""Columns that say whose usage it is, in their order."""


class UsageGrouping(StrEnum):
    """What usage is added up by."""

    OWNER = "owner"
    PROJECT = "project"
    JOB = "job"
    MONTH = "month"


def usage(
    by: Annotated[
        list[UsageGrouping] | None,
        typer.Option(help="Add up by this; may be repeated. Default: owner; with --csv month, owner and project."),
    ] = None,
    since: Annotated[
        str, typer.Option(metavar="DAY", help="First day or month in UTC, e.g. 2026-07-15 or 2026-07.")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="DAY", help="First day or month that does not count any more, e.g. 2026-08.")
    ] = "",
    owner: Annotated[str, typer.Option(metavar="NAME", help="Only the usage of this user.")] = "",
    mine: Annotated[bool, typer.Option("--mine", help="Only your own usage.")] = False,
    as_table: Annotated[bool, typer.Option("--csv", help="Print CSV, as billing reads it.")] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Show who used what: node-hours, GPU-hours, samples, preemptions, and what is charged for it.

    Users see their own usage, viewers and operators that of all.
    """
    if as_table and as_json:
        raise InvalidInputError("--csv", "one of --csv and --json")
    if mine and owner:
        raise InvalidInputError("--mine", "one of --mine and --owner")
    keys = _keys(by, as_table=as_table)
    request = pb.GetUsageRequest(
        group_by=keys, since=_first_day("--since", since), until=_first_day("--until", until), owner=owner
    )
    with connect() as stubs:
        if mine:
            request.owner = own_name(stubs)
        parts = _ask_pages(stubs, request)
    rows, last = [row for part in parts for row in part.rows], parts[-1]
    if cut := cut_in_words(last.cut_months):
        typer.echo(f"note: {cut}", err=True)
    if as_table:
        typer.echo(as_csv(billing_columns(rows, last.currency)), nl=False)
    elif as_json:
        print_json(_as_dict(rows, last))
    else:
        _print(rows, last, keys)


def _ask_pages(stubs: ServiceStubs, request: pb.GetUsageRequest) -> list[pb.GetUsageResponse]:
    try:
        return list(stubs.job_manager.GetUsage(request, timeout=_SECONDS))
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise MalleTrainError("JobManager is of an earlier version, which does not keep usage") from None
        raise


def _keys(by: Sequence[UsageGrouping] | None, *, as_table: bool) -> list[pb.UsageKey.ValueType]:
    if not by:
        return list(MONTHLY) if as_table else [pb.USAGE_KEY_OWNER]
    return [pb.UsageKey.Value(f"USAGE_KEY_{key.name}") for key in dict.fromkeys(by)]


def _first_day(option: str, text: str) -> str:
    if _MONTH.match(text):
        return f"{text}-01"
    if text and not _DAY.match(text):
        raise InvalidInputError(option, "a day such as 2026-07-15, or a month such as 2026-07", text)
    return text


def _as_dict(rows: Sequence[pb.UsageRow], last: pb.GetUsageResponse) -> dict[str, object]:
    total = sum_rows(rows).get("", pb.UsageRow())
    entries, sums = [to_dict(row) for row in rows], to_dict(total)
    for name in ("owner", "project", "jobId", "month"):
        sums.pop(name)
    return {
        "asOfTime": to_dict(last)["asOfTime"],
        "currency": last.currency,
        "cutMonths": list(last.cut_months),
        "rows": entries,
        "total": sums,
    }


def _print(rows: Sequence[pb.UsageRow], last: pb.GetUsageResponse, keys: Sequence[pb.UsageKey.ValueType]) -> None:
    """Print a table, with a sum below several rows."""
    key_columns = [column for key, column in _NAMES.items() if key in keys]
    total = sum_rows(rows).get("", pb.UsageRow())
    columns = [name for name, _ in key_columns]
    cells = [[text(row) for _, text in key_columns] + _figures(row, total) for row in rows]
    if len(rows) > 1:
        cells.append(["total", *("" for _ in key_columns[1:]), *_figures(total, total)])
    if not cells:
        typer.echo("nothing was used")
        return
    columns += ["node-hours", "lost", "samples", "preemptions"]
    if total.gpu_seconds:
        columns.insert(len(key_columns) + 1, "GPU-hours")
    if total.full_charge:
        columns.append(f"charge in {last.currency}" if last.currency else "charge")
    print_table(columns, cells)


def _figures(row: pb.UsageRow, total: pb.UsageRow) -> list[str]:
    """The figures of a row; those of GPUs and charges only where there are any at all."""
    lost = row.lost_node_seconds / row.node_seconds if row.node_seconds else 0.0
    figures = [f"{row.node_seconds / HOUR_SECONDS:,.2f}", f"{lost:.0%}", f"{row.samples:,}", f"{row.preemptions:,}"]
    if total.gpu_seconds:
        figures.insert(1, f"{row.gpu_seconds / HOUR_SECONDS:,.2f}")
    if total.full_charge:
        figures.append(f"{row.charge:,.2f}")
    return figures
