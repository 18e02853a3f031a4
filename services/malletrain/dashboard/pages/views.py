"""What the pages say in words and numbers, from a history. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from malletrain.allocator.explanation.sentences import in_units
from malletrain.dashboard.figures.colours import Colours
from malletrain.dashboard.figures.columns import jobs_in_words
from malletrain.dashboard.pages import selection
from malletrain.dashboard.pages.markup import Cell, Row, duration, number, number_cells, percent
from malletrain.dashboard.pages.plan_values import PlanValues
from malletrain.dashboard.pages.selection import Selection
from malletrain.observer.eta import Eta, eta, idle_quantiles
from malletrain.observer.facts import PlanFact, RequirementFact
from malletrain.observer.history import History, holders
from malletrain.observer.job_facts import JobFact

MAX_ROWS = 1000
"""Rows of a table on a page; the CSV has all."""


def time_of_day(time: float) -> str:
    """A time as hours, minutes and seconds in the viewer's zone, which figures have as well."""
    return f"{selection.at(time):%H:%M:%S}"


def date_and_time(time: float) -> str:
    """A time with its date, in the viewer's zone."""
    return f"{selection.at(time):%Y-%m-%d %H:%M:%S}"


def legend_rows(history: History, colours: Colours, chosen: Selection) -> tuple[Row, ...]:
    """Jobs that have nodes, and those that had some in the shown period, with their colours."""
    since, until = chosen.period(history.now)
    seen = {
        job_id
        for fragment in history.fragments
        if fragment.start < until and (fragment.end is None or fragment.end > since)
        for job_id in fragment.jobs
    }
    jobs = [job for job in history.jobs.values() if job.commanded or job.confirmed or job.id in seen]
    jobs.sort(key=lambda job: (not (job.commanded or job.confirmed), job.id))
    return tuple(
        Row(
            f"legend-{job.id}",
            (
                _job_cell(job.id, colours, chosen),
                Cell(job.name),
                state_cell(job.state),
                *number_cells(_scale(job), _rate(history, job)),
            ),
            chosen=job.id == chosen.job,
        )
        for job in jobs[:MAX_ROWS]
    )


def _job_cell(job_id: str, colours: Colours, chosen: Selection) -> Cell:
    """A job's identifier, which leads to its page."""
    return Cell(job_id, link=chosen.link("job", job=job_id), colour=colours.of_job(job_id))


def state_cell(state: str) -> Cell:
    """A job's state, with its colour."""
    return Cell(state.lower(), state=state.lower())


def job_order(job: JobFact) -> tuple[int, str]:
    """Jobs that have not ended first; then the newest first."""
    return (1, _inverse(job.id)) if job.final else (0, job.id)


def job_rows(history: History, colours: Colours, chosen: Selection) -> tuple[Row, ...]:
    """All jobs that are kept."""
    quantiles = idle_quantiles(history.minutes[-60:])
    idle = len(history.nodes or ())
    rows = []
    for job in sorted(history.jobs.values(), key=job_order)[:MAX_ROWS]:
        remaining = eta(job, history.curves.get(job.id), _samples(history, job), idle, quantiles)
        rows.append(_job_row(history, colours, chosen, job, remaining))
    return tuple(rows)


def _job_row(history: History, colours: Colours, chosen: Selection, job: JobFact, remaining: Eta | None) -> Row:
    samples = _samples(history, job)
    share = samples / job.target_samples if job.target_samples else None
    progress = percent(share, 0) if share is not None else number(samples)
    cells = (
        _job_cell(job.id, colours, chosen),
        Cell(job.name),
        Cell(job.owner),
        state_cell(job.state),
        Cell(why(history, job), sentence=True),
        Cell(_scale(job), number=True, hint=f"{job.min_nodes} to {job.max_nodes} nodes", order=len(job.confirmed)),
        Cell(f"{job.min_nodes}–{job.max_nodes}", number=True, order=job.max_nodes),
        Cell(_rate(history, job), number=True),
        Cell(progress, number=True, share=share, hint=f"{samples:,} samples{_unsure(job)}", order=share),
        Cell(_before_brackets(eta_in_words(remaining)), number=True, wraps=True, order=_eta_order(remaining)),
        *number_cells(str(job.rescales), str(job.preemptions)),
    )
    return Row(f"job-{job.id}", cells, chosen=job.id == chosen.job)


def why(history: History, job: JobFact) -> str:
    """Why a job is in its state, and what it waits for."""
    idle = len(history.nodes or ())
    if job.state == "WAITING" and job.not_before is not None and job.not_before > history.now:
        return f"{job.reason}; no nodes before {time_of_day(job.not_before)}"
    if job.state == "WAITING" and job.min_nodes > idle:
        return f"{job.reason}; needs {job.min_nodes} nodes at least, idle now: {idle}"
    if job.state == "WAITING" and not job.final and (plan := _without_nodes(history, job)):
        return f"{job.reason}; plan {plan} gives it no node (the page Plan says why)"
    if job.state == "QUEUED":
        queued = [other for other in history.jobs.values() if other.state == "QUEUED"]
        ahead = sum(other.id < job.id for other in queued)
        admitted = sum(other.admitted for other in history.jobs.values() if not other.final)
        place = "it is the next" if not ahead else f"{ahead} before it"
        return f"{job.reason or 'queued'}; waits for admission after {admitted} jobs that have it, {place}"
    return job.reason


def _without_nodes(history: History, job: JobFact) -> int:
    """Generation of the newest plan if it knows the job and gives it nothing; else 0."""
    plan = history.plans[-1] if history.plans else None
    known = plan is not None and any(row.job_id == job.id and not row.after for row in plan.rows)
    return plan.generation if plan is not None and known else 0


def leaving_next(history: History) -> str:
    """Which node is expected to leave next."""
    stays = {name: stay for name in history.nodes or () if (stay := remaining_stay(history, name)) is not None}
    if not history.nodes:
        return "no node is idle"
    if not stays:
        return "not known: the Scavenger has no expected stays yet"
    name = min(stays, key=lambda name: (stays[name], name))
    unknown = len(history.nodes) - len(stays)
    more = f"; of {unknown} others nothing is known" if unknown else ""
    idle_for = duration(history.now - history.nodes[name].idle_since)
    return f"{name}, expected to stay {duration(stays[name])} more, idle for {idle_for}{more}"


def eta_in_words(remaining: Eta | None) -> str:
    """An ETA with its interval."""
    if remaining is None:
        return "–"
    if remaining.soonest is None:
        return "unknown"
    latest = about(remaining.latest) if remaining.latest is not None else "open"
    expected = f"{about(remaining.expected)} " if remaining.expected is not None else ""
    return f"{expected}({about(remaining.soonest)} to {latest})"


def _eta_order(remaining: Eta | None) -> float | None:
    """Sort key of an ETA; None: not known."""
    if remaining is None:
        return None
    return remaining.expected if remaining.expected is not None else remaining.soonest


def _before_brackets(text: str) -> str:
    """The same, which may only be broken before the brackets."""
    return text.replace(" ", "\u00a0").replace("\u00a0(", " (")


def about(seconds: float) -> str:
    """A duration that is an estimate: to the minute from ten minutes on."""
    return f"{round(seconds / 60)} min" if 600 <= seconds < 3570 else duration(seconds)


def _unsure(job: JobFact) -> str:
    return "" if job.samples_known else " since its last start from disk: it reports no position"


def _samples(history: History, job: JobFact) -> int:
    fact = history.progress.get(job.id)
    return max(job.samples, fact.samples) if fact is not None else job.samples


def _scale(job: JobFact) -> str:
    if job.commanded == job.confirmed:
        return str(len(job.confirmed))
    return f"{len(job.confirmed)} → {len(job.commanded)}"


def _rate(history: History, job: JobFact) -> str:
    fact = history.progress.get(job.id)
    if job.final or fact is None or not job.confirmed or not fact.rate:
        return "–"
    return number(fact.rate, 1)


def _inverse(job_id: str) -> str:
    """A key that sorts identifiers of jobs in falling order."""
    return "".join(chr(0x10FFFF - ord(letter)) for letter in job_id)


def plan_rows(
    plan: PlanFact, values: PlanValues | None, names: Mapping[str, str], colours: Colours, chosen: Selection
) -> tuple[Row, ...]:
    """What each job got in a plan, and what nodes are worth to it."""
    worth = {value.job_id: value for value in values.jobs} if values is not None else {}
    rows = []
    for row in plan.rows[:MAX_ROWS]:
        value = worth.get(row.job_id)
        change = row.after - row.before
        cells = (
            _job_cell(row.job_id, colours, chosen),
            Cell(names.get(row.job_id, "")),
            *number_cells(str(row.before), str(row.after), f"{change:+d}" if change else "same"),
            *number_cells(_worth(value.one_more if value else None), _worth(value.one_fewer if value else None)),
        )
        rows.append(Row(f"plan-{row.job_id}", cells, chosen=row.job_id == chosen.job))
    return tuple(rows)


def requirement_rows(needs: Sequence[RequirementFact], colours: Colours, chosen: Selection) -> tuple[Row, ...]:
    """What each job would have needed to get more, and why it has what it has."""
    return tuple(
        Row(
            f"need-{need.job_id}",
            (
                _job_cell(need.job_id, colours, chosen),
                Cell(need.needs),
                Cell(". ".join(f"{text[:1].upper()}{text[1:]}" for text in need.why) + "."),
            ),
            chosen=need.job_id == chosen.job,
        )
        for need in needs[:MAX_ROWS]
    )


def _worth(value: float | None) -> str:
    return "–" if value is None else in_units(value)


def plan_facts(plan: PlanFact, values: PlanValues | None) -> list[tuple[str, str]]:
    """What a plan says of itself."""
    facts = [
        ("plan", str(plan.generation)),
        ("made", date_and_time(plan.time)),
        ("because", plan.trigger or "–"),
        ("outcome", "applied" if plan.applied else f"refused: {plan.refusal}"),
        ("pool", f"{plan.nodes} nodes"),
        ("T_fwd", duration(plan.forward_s)),
        ("objective", f"{in_units(plan.objective)}, {plan.status} by {plan.solver} in {1000 * plan.solve_s:.2f} ms"),
    ]
    if values is not None and values.next_node is not None:
        facts.append(("price of a node", f"{in_units(values.next_node)} (what one more would add to the objective)"))
        if values.last_node is not None:
            facts.append(("worth of the last node", f"{in_units(values.last_node)} (what one fewer would take away)"))
    facts += [("left out", line) for line in plan.omissions]
    return facts


def node_rows(history: History, colours: Colours, chosen: Selection) -> tuple[Row, ...]:
    """The idle nodes; those that are expected to leave next come first."""
    held = holders(history)

    def leaves(name: str) -> tuple[float, str]:
        stay = remaining_stay(history, name)
        return (stay if stay is not None else float("inf"), name)

    rows = []
    for name in sorted(history.nodes or (), key=leaves)[:MAX_ROWS]:
        node = (history.nodes or {})[name]
        jobs = held.get(name, ())
        job_id = jobs[0] if jobs else ""
        until = time_of_day(node.idle_until) if node.idle_until is not None else "–"
        cells = (
            Cell(name, link=chosen.link("nodes", node=name)),
            Cell(
                jobs_in_words(jobs) or "none",
                link=chosen.link("job", job=job_id) if job_id else "",
                colour=colours.of_job(job_id),
                hint="members of a fleet, on GPUs of their own" if len(jobs) > 1 else "",
            ),
            *number_cells(duration(history.now - node.idle_since), duration(remaining_stay(history, name)), until),
            Cell(node.pool or "–"),
            Cell(node.gpus or "–"),
            Cell("placeholder" if node.held else "–"),
        )
        rows.append(Row(f"node-{name}", cells, chosen=name == chosen.node))
    return tuple(rows)


def remaining_stay(history: History, name: str) -> float | None:
    """How much longer a node is expected to stay idle; None where nothing is known."""
    node = (history.nodes or {}).get(name)
    if node is None or not node.expected_stay_s:
        return None
    stay = node.expected_stay_s
    return min(stay, max(0.0, node.idle_until - history.now)) if node.idle_until is not None else stay


def trouble_rows(history: History, chosen: Selection) -> tuple[Row, ...]:
    """Nodes that are quarantined or drained."""
    troubles = history.source.troubles if history.source is not None else ()
    return tuple(
        Row(
            f"trouble-{place}",
            (
                Cell(trouble.name or "all nodes", link=chosen.link("nodes", node=trouble.name) if trouble.name else ""),
                Cell(trouble.kind),
                Cell(trouble.text),
            ),
        )
        for place, trouble in enumerate(troubles[:MAX_ROWS])
    )


def fragment_rows(history: History, chosen: Selection, colours: Colours) -> tuple[Row, ...]:
    """What became of one node, newest first."""
    if not chosen.node:
        return (Row("fragment-none", (Cell("choose a node above"), Cell(""), Cell(""), Cell(""))),)
    periods = [fragment for fragment in history.fragments if fragment.node == chosen.node][::-1][:100]
    return tuple(
        Row(
            f"fragment-{place}",
            (
                Cell(jobs_in_words(fragment.jobs) or "idle, no job", colour=colours.of_job(fragment.job_id)),
                Cell(date_and_time(fragment.start)),
                Cell(date_and_time(fragment.end) if fragment.end is not None else "lasts", number=False),
                Cell(duration((history.now if fragment.end is None else fragment.end) - fragment.start), number=True),
            ),
        )
        for place, fragment in enumerate(periods)
    )


def idle_lengths(history: History) -> tuple[list[float], list[float]]:
    """Lengths of the idle periods that have ended, and of those that last, as seen here, in seconds."""
    ended: list[float] = []
    lasting = [history.now - node.idle_since for node in (history.nodes or {}).values()]
    since: dict[str, tuple[float, float]] = {}
    for fragment in sorted(history.fragments, key=lambda fragment: (fragment.node, fragment.start)):
        begin, end = since.get(fragment.node, (fragment.start, fragment.start))
        if fragment.start > end + 0.001:
            ended.append(end - begin)
            begin = fragment.start
        if fragment.end is None:
            since.pop(fragment.node, None)
            continue
        since[fragment.node] = (begin, fragment.end)
    ended += [end - begin for name, (begin, end) in since.items() if name not in (history.nodes or {})]
    return [length for length in ended if length > 0], [length for length in lasting if length > 0]
