"""Usage of the time before it was kept, from the journal: for the revision of the tables that begins to keep it.

The journal says which nodes each job was commanded to use, and until when. It does not say how many GPUs a node has,
nor when samples were trained: whole nodes have no GPU-seconds of that time, and a job's samples are spread over the
node-seconds in which it trained. Later revisions may change the tables, so that these here are as they were then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from malletrain.job_manager.machine.usage import Holding, OpenUsage, UsageAmounts, day_of, month_of, settle_usage

_FINAL = ("COMPLETED", "FAILED", "CANCELLED")
_WITH_WORKERS = ("RUNNING", "RESCALING", "STOPPING")
_PREEMPTED = "preempted:"
"""How reasons begin that version 0.1.0 has written without a code."""
_AT_ONCE = 1000
_METADATA = sa.MetaData()
_JOBS = sa.Table(
    "jobs",
    _METADATA,
    sa.Column("number", sa.BigInteger),
    sa.Column("body", sa.Text),
    sa.Column("owner", sa.String(256)),
)
_JOURNAL = sa.Table(
    "journal",
    _METADATA,
    *(sa.Column(name, sa.BigInteger) for name in ("sequence", "job_number")),
    *(sa.Column(name, sa.Text) for name in ("to_state", "reason", "reason_code", "nodes")),
    sa.Column("unix_seconds", sa.Float),
)


@dataclass
class _Course:
    """What a job has used so far, by the journal.

    Attributes:
        names: Nodes or GPUs that it is commanded to use.
        confirmed: Those on which it trained, as far as the journal shows.
        days: Days that are complete, with what was used on each.
        preemptions: How many were found.
    """

    usage: OpenUsage
    names: tuple[str, ...] = ()
    confirmed: frozenset[str] = frozenset()
    state: str = ""
    days: list[tuple[int, UsageAmounts]] = field(default_factory=list)
    preemptions: int = 0


def earlier_usage(connection: sa.Connection) -> Iterator[dict[str, Any]]:
    """Rows of the table `usage`, from the journal. Both may be large: no more is in memory than of jobs that go on."""
    courses: dict[int, _Course] = {}
    on_node: dict[str, dict[int, int]] = {}
    columns = _JOURNAL.c
    query = sa.select(
        *(columns.job_number, columns.unix_seconds, columns.to_state, columns.reason_code, columns.nodes),
        sa.func.substr(columns.reason, 1, len(_PREEMPTED)).label("begin"),
    ).order_by(columns.sequence)
    for row in connection.execute(query.execution_options(yield_per=_AT_ONCE)):
        course = courses.setdefault(row.job_number, _Course(OpenUsage(day_of(row.unix_seconds), row.unix_seconds)))
        touched = _take_row(row.job_number, course, row, on_node)
        for number in {row.job_number, *touched} & courses.keys():
            _settle(courses[number], row.unix_seconds, on_node)
        if row.reason_code.startswith("PREEMPTED") or row.begin == _PREEMPTED:
            course.preemptions += 1
        if row.to_state in _FINAL:
            yield from _rows_of_stored_job(connection, row.job_number, courses.pop(row.job_number), ended=True)
    for number, course in courses.items():
        yield from _rows_of_stored_job(connection, number, course, ended=False)


def _take_row(number: int, course: _Course, row: Any, on_node: dict[str, dict[int, int]]) -> set[int]:
    """Take over a row; returns the jobs that have a part of one of its nodes, or had one until now."""
    before, course.names, course.state = course.names, tuple(json.loads(row.nodes)), row.to_state
    if row.reason_code == "CONFIRMED" or row.to_state == "RUNNING":
        course.confirmed = frozenset(course.names)
    elif row.to_state not in _WITH_WORKERS:
        course.confirmed = frozenset()
    touched: set[int] = set()
    for node in {name.partition("#")[0] for name in {*before} ^ {*course.names}}:
        used = on_node.setdefault(node, {})
        touched |= used.keys()
        used[number] = sum(name.partition("#")[0] == node for name in course.names)
        if not used[number]:
            del used[number]
        if not used:
            del on_node[node]
    return touched


def _settle(course: _Course, now: float, on_node: dict[str, dict[int, int]]) -> None:
    days, usage = settle_usage(course.usage, now, 0, course.preemptions)
    course.days += days
    parts = [(name, 1.0 / max(1, sum(on_node.get(name.partition("#")[0], {}).values()))) for name in course.names]
    training = course.confirmed if course.state != "STOPPING" else frozenset()
    holding = Holding(
        sum(part for _, part in parts),
        float(sum("#" in name for name in course.names)),
        sum(part for name, part in parts if name not in training),
    )
    course.usage = replace(usage, holding=holding)


def _rows_of_stored_job(
    connection: sa.Connection, number: int, course: _Course, *, ended: bool
) -> Iterator[dict[str, Any]]:
    """Rows of a job that is in the database still."""
    row = connection.execute(sa.select(_JOBS.c.body, _JOBS.c.owner).where(_JOBS.c.number == number)).one_or_none()
    if row is None:
        return
    job = json.loads(row.body)
    newest = replace(course.usage.amounts, preemptions=course.preemptions - course.usage.preemptions)
    days = [*course.days, (course.usage.day, newest)]
    samples = list(_spread(int(job.get("samples", 0)), [amounts for _, amounts in days]))
    counted = sum(amounts.preemptions for _, amounts in days)
    missing = max(0, int(job.get("preemptions", 0)) - counted)
    goes_on = replace(
        course.usage, samples=sum(samples[:-1]), preemptions=sum(amounts.preemptions for _, amounts in days[:-1])
    )
    known = [
        (day, replace(amounts, samples=share, preemptions=amounts.preemptions + missing * (place == len(days) - 1)))
        for place, ((day, amounts), share) in enumerate(zip(days, samples, strict=True))
    ]
    if not course.usage.holding.nodes and not any(amounts != UsageAmounts() for _, amounts in known):
        return
    for place, (day, complete) in enumerate(known):
        opened = goes_on if place == len(known) - 1 and not ended else None
        if complete == UsageAmounts() and opened is None:
            continue
        yield {
            "job_number": number,
            "day": day,
            "month": month_of(day),
            "owner": row.owner or job.get("owner", ""),
            "project": "",
            **asdict(complete),
            "since": None if opened is None else opened.since,
            "nodes": None if opened is None else opened.holding.nodes,
            "gpus": None if opened is None else opened.holding.gpus,
            "lost": None if opened is None else opened.holding.lost,
            "samples_before": None if opened is None else opened.samples,
            "preemptions_before": None if opened is None else opened.preemptions,
        }


def _spread(samples: int, days: Iterable[UsageAmounts]) -> Iterator[int]:
    """Samples of each day, as many as there are in all: by the node-seconds in which the job trained."""
    trained = [max(0.0, amounts.node_seconds - amounts.lost_node_seconds) for amounts in days]
    whole, so_far, spread = sum(trained), 0.0, 0
    for place, part in enumerate(trained):
        so_far += part
        upto = samples if place == len(trained) - 1 else round(samples * so_far / whole) if whole else 0
        yield upto - spread
        spread = upto
