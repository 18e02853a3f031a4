"""Parsers of what the commands of PBS print: `pbsnodes -av -F json`, `qstat -f -w`, `pbs_rstat -f`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from malletrain.scavenger.sources.schedulers.availability import (
    NodeReservation,
    NodeStates,
    PlannedStart,
    UnreadableError,
)
from malletrain.scavenger.sources.schedulers.pbs_hosts import (
    USUAL_GPU_RESOURCES,
    GpuResources,
    facts_of,
    is_wanted,
    read_hosts,
    reservations_of,
    table_of,
)
from malletrain.scavenger.sources.schedulers.tolerant_json import read_answer

QSTAT_FULL = ("-f", "-w")
"""Options of qstat for `read_jobs`; PBS Pro 18.1 and later."""

_JOB = "Job Id: "


def read_jobs(text: str, attributes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Attributes of each job; those with resources, such as `estimated.start_time`, as a dictionary of these.

    Text rather than JSON is asked for, since what users choose can't pretend to be anything else there: each attribute
    is one line, line breaks within a value are printed as `\\n` (qstat.c, `convert_feed_chars`), and all names are the
    server's. In the JSON of PBS before 2024 the names of a user's variables, with any quotes and line breaks in them,
    stand as they are, so that a user could add jobs to the answer, or hide those of others. JSON is read where a site's
    own qstat prints it.

    Args:
        text: What `qstat -f -w` or `qstat -f -F json` printed. The values of text are strings.
        attributes: Names of the attributes that are wanted. Others are left out, except of JSON.

    Raises:
        UnreadableError: the text has another form.
    """
    if text.lstrip().startswith("{"):
        return _from_json(text)
    if text and not text.endswith("\n"):
        raise UnreadableError("an answer that ends with a line break", text[-40:])
    if text.strip() and not text.startswith(_JOB):
        raise UnreadableError("jobs, as `qstat -f -w` prints them", text)
    wanted = "|".join(map(re.escape, attributes))
    # Only a line break ends a line: a user's value may contain what else Python takes for one.
    line = re.compile(rf"^(?:{_JOB}(\S+)|    ({wanted})(?:\.([^\s=]+))? = ([^\n]*))$", re.MULTILINE)
    jobs: dict[str, dict[str, Any]] = {}
    job: dict[str, Any] = {}
    for identifier, name, resource, value in line.findall(text):
        if identifier:
            job = jobs.setdefault(identifier, {})
        elif not resource:
            job.setdefault(name, value)
        elif isinstance(resources := job.setdefault(name, {}), dict):
            resources.setdefault(resource, value)
    return jobs


def _from_json(text: str) -> dict[str, dict[str, Any]]:
    answer = read_answer(text, skip_damage=True)
    jobs = answer.get("Jobs", {})
    if "pbs_version" not in answer or not isinstance(jobs, dict):
        raise UnreadableError("an answer of PBS", text)
    return {identifier: job for identifier, job in jobs.items() if isinstance(job, dict)}


_CHUNK = re.compile(r"([][A-Za-z0-9._-]+)((?::[^:+()]*)*)")
_FIELD = re.compile(r"\s*([A-Za-z_.]+) = (.*)")
_NO_ESTIMATE = "UNKNOWN"
_NOTHING_ASSIGNED = re.compile(r"0+(\.0+)?([kmgtp]?[bw])?|0+(:0+)+|", re.IGNORECASE)


def parse_vnodes(
    text: str,
    *,
    queues: Iterable[str] = (),
    pool: str = "",
    gpu_resources: GpuResources = USUAL_GPU_RESOURCES,
    topology_resources: Sequence[str] = (),
) -> NodeStates:
    """The answer to `pbsnodes -av -F json`.

    The state `free` is not enough: vnodes that are used in part, or reserved for later, are free, too. A host is idle
    when all its vnodes are. One with a vnode whose state is not known is not.

    Args:
        text: What was printed.
        queues: Only vnodes of these queues, and vnodes that belong to no queue; empty: all vnodes.
        pool: Pool of all these nodes.
        gpu_resources: Where it is told what GPUs are.
        topology_resources: Resources of a vnode that name the groups it is in, from the outermost.

    Raises:
        UnreadableError: the text has another form.
    """
    hosts = read_hosts(text)
    wanted = frozenset(queues)
    idle = {host for host, vnodes in hosts.vnodes.items() if all(map(_is_idle, vnodes)) and is_wanted(vnodes, wanted)}
    facts = {host: facts_of(vnodes, pool, gpu_resources, topology_resources) for host, vnodes in hosts.vnodes.items()}
    return NodeStates(
        idle=frozenset(idle),
        known=frozenset(hosts.vnodes),
        facts=facts,
        reserved_by={host: names for host in idle if (names := reservations_of(hosts.vnodes[host]))},
        offline=hosts.offline,
        units=hosts.split,
        unclear=hosts.unclear,
    )


def parse_jobs(text: str) -> tuple[PlannedStart, ...]:
    """The answer to `qstat -f -w`: jobs with an estimated start, times in UTC.

    PBS estimates only the first `backfill_depth` jobs, and only with `strict_ordering` or backfilling on. An estimate
    that can't be read is left out.

    Raises:
        UnreadableError: the text has another form, or there are estimates, and none can be read.
    """
    starts = []
    fault: UnreadableError | None = None
    for job, attributes in read_jobs(text, ("job_state", "estimated")).items():
        estimated = table_of(attributes, "estimated")
        start, places = estimated.get("start_time"), estimated.get("exec_vnode")
        if attributes.get("job_state") != "Q" or not isinstance(start, str) or not isinstance(places, str):
            continue
        if start != _NO_ESTIMATE:
            try:
                starts.append(PlannedStart(job, _time(start), _vnodes(places)))
            except UnreadableError as error:
                fault = error
    if fault is not None and not starts:
        raise fault
    return tuple(starts)


def parse_reservations(text: str) -> tuple[NodeReservation, ...]:
    """The answer to `pbs_rstat -f`, times in UTC.

    A reservation that can't be read is left out, if others can: its nodes name it (`resv`), and are not used while its
    start is not known. Line breaks within values are printed as they are, so that a user could add lines to what he
    has reserved: of each field the first line counts. A reservation that is named twice is reserved twice.

    Raises:
        UnreadableError: the text has another form.
    """
    if text and not text.endswith("\n"):
        raise UnreadableError("an answer that ends with a line break", text[-40:])
    reservations = []
    fault: UnreadableError | None = None
    for block in re.split(r"^Resv ID: ", text, flags=re.MULTILINE)[1:]:
        try:
            reservations.append(_reservation(block))
        except UnreadableError as error:
            fault = error
    if not reservations and text.strip():
        raise fault or UnreadableError("reservations", text)
    return tuple(reservations)


def _reservation(block: str) -> NodeReservation:
    name, *lines = block.split("\n")
    fields: dict[str, str] = {}
    for entry in map(_FIELD.fullmatch, lines):
        if entry:
            fields.setdefault(entry[1], entry[2])
    if not {"reserve_start", "reserve_end"} <= fields.keys():
        raise UnreadableError("a reservation with reserve_start and reserve_end", name)
    nodes = _vnodes(fields["resv_nodes"]) if "resv_nodes" in fields else ()
    return NodeReservation(name.strip(), _time(fields["reserve_start"]), _time(fields["reserve_end"]), nodes)


def _is_idle(vnode: Mapping[str, Any]) -> bool:
    if vnode.get("state") != "free" or vnode.get("jobs"):
        return False
    assigned = vnode.get("resources_assigned", {})
    return isinstance(assigned, dict) and all(
        _NOTHING_ASSIGNED.fullmatch(str(amount)) is not None for amount in assigned.values()
    )


def _vnodes(text: str) -> tuple[str, ...]:
    """Names in `(pn001:ncpus=8)+(pn002:ncpus=8+pn003:ncpus=8)`."""
    names = []
    for chunk in re.split(r"\+", text):
        match = _CHUNK.fullmatch(chunk.strip().strip("()"))
        if not match:
            raise UnreadableError("vnodes such as (pn001:ncpus=8)+(pn002:ncpus=8)", text)
        names.append(match[1])
    return tuple(dict.fromkeys(names))


def _time(text: str) -> float:
    """Seconds since the epoch; the commands are run with TZ=UTC, in the C locale."""
    try:
        return datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise UnreadableError("a time such as Sat Nov 21 03:21:04 2026", text) from error
