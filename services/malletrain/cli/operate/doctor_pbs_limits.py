"""What may keep PBS from taking or starting placeholders: access, limits, and a scheduler that does nothing. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from malletrain.cli.operate.doctor_checks import Finding, judge
from malletrain.scavenger.sources.schedulers.settings import HoldSettings

_LIMIT = re.compile(r'\[([uo]):"?([^="\]]+)"?=(\d+)\]')
_EACH_KIND = ("max_run", "max_queued")
_OLD_KINDS = ("max_running", "max_user_run", "max_queuable")
_PREEMPTIVE = re.compile(r"^preemptive_sched:[ \t]+(\w+)(?:[ \t]+(\w+))?", re.MULTILINE)
_SEVERAL = 2


@dataclass(frozen=True)
class Admission:
    """What is known of the queue of placeholders, and of who submits them.

    Attributes:
        queue: Its attributes, by `qstat -Qf`.
        server: Those of the server, by `qstat -Bf`.
        scheduler: Those of the scheduler, by `qmgr -c 'list sched'`.
        user: Whose placeholders they are.
        nodes: How many nodes there are; 0 if it is not known.
        scheduler_file: The text of sched_config; None where it can't be read.
    """

    queue: Mapping[str, Any]
    server: Mapping[str, Any]
    scheduler: Mapping[str, str]
    user: str
    nodes: int = 0
    scheduler_file: str | None = None


def judge_admission(known: Admission, hold: HoldSettings) -> Iterator[Finding]:
    """Judge whether placeholders are taken, and started. Pure."""
    name = hold.queue
    yield from _permissions(known, name)
    off = [
        where for where, it in (("server", known.server), ("sched", known.scheduler)) if _is(it, "scheduling", "False")
    ]
    remedy = "; ".join(f"qmgr -c 'set {where} scheduling = True'" for where in off) + ": else no job is started at all"
    yield judge("scheduling", not off, f"off for: {', '.join(off)}" if off else "on", remedy)
    routed = _is(known.queue, "from_route_only", "True")
    remedy = f"qmgr -c 'unset queue {name} from_route_only': placeholders are submitted to {name} itself"
    yield judge(f"from_route_only of {name}", not routed, routed, remedy)
    yield _limit(known, name)
    yield from _walltimes(known, hold)
    yield _preemptive(known)


def allows(entries: str, user: str) -> bool:
    """Whether a list such as `acl_users` lets a user in: the first entry that fits decides; nobody else is let in.

    Args:
        entries: `[+|-]USER[@HOST]`, with commas. From which host a user submits is not looked at.
        user: Name of the user.
    """
    for entry in entries.split(","):
        word = entry.strip()
        if fnmatchcase(user, word.lstrip("+-").partition("@")[0]):
            return not word.startswith("-")
    return False


def running_limits(attributes: Mapping[str, Any], user: str) -> dict[str, int]:
    """How many jobs a user may have at a time, by the name of the limit: by those for the user, and those for all.

    A limit for a user by name is in the place of that for each user. Limits for groups and projects are not looked at.
    """
    found = {}
    for kind in _EACH_KIND:
        limits = {(who, name): int(count) for who, name, count in _LIMIT.findall(str(attributes.get(kind, "")))}
        own = limits.get(("u", user), limits.get(("u", "PBS_GENERIC")))
        known = [count for count in (own, limits.get(("o", "PBS_ALL"))) if count is not None]
        if known:
            found[kind] = min(known)
    for kind in _OLD_KINDS:
        if str(attributes.get(kind, "")).isdigit():
            found[kind] = int(attributes[kind])
    return found


def duration_seconds(text: object) -> float | None:
    """Seconds of `HH:MM:SS` or of a number of seconds; None if it is neither."""
    parts = str(text).split(":")
    if not all(re.fullmatch(r"\d+(\.\d+)?", part) for part in parts):
        return None
    seconds = 0.0
    for part in parts:
        seconds = seconds * 60 + float(part)
    return seconds


def _is(attributes: Mapping[str, Any], name: str, value: str) -> bool:
    return str(attributes.get(name, "")).lower() == value.lower()


def _permissions(known: Admission, name: str) -> Iterator[Finding]:
    for where, attributes in ((f"queue {name}", known.queue), ("server", known.server)):
        if _is(attributes, "acl_user_enable", "True"):
            entries = str(attributes.get("acl_users", ""))
            remedy = f"qmgr -c 'set {where} acl_users += {known.user}': else no placeholder is taken"
            found = f"only for {entries or 'nobody'}; we are {known.user}"
            yield judge(f"permission of {where}", allows(entries, known.user), found, remedy)
        for kind in ("group", "host"):
            if _is(attributes, f"acl_{kind}_enable", "True"):
                found = f"{kind}s: only {attributes.get(f'acl_{kind}s', 'none')}; --try tells whether we are among them"
                yield Finding(f"permission by {kind} of {where}", True, found)


def _limit(known: Admission, name: str) -> Finding:
    limits = {
        f"{kind} of {where}": count
        for where, attributes in ((f"queue {name}", known.queue), ("server", known.server))
        for kind, count in running_limits(attributes, known.user).items()
    }
    check = f"limits of {name}"
    if not limits:
        return Finding(check, True, "no number of jobs is too large")
    lowest = min(limits, key=lambda limit: limits[limit])
    found = f"at most {limits[lowest]} at a time by {lowest}"
    remedy = (
        "a higher limit, or fewer nodes (scavenger.pbs.include): a placeholder that PBS does not start for a limit "
        "counts as failed, and delays the others"
    )
    return judge(check, limits[lowest] >= (known.nodes or _SEVERAL), f"{found}, {known.nodes or '?'} nodes", remedy)


def _walltimes(known: Admission, hold: HoldSettings) -> Iterator[Finding]:
    longest, shortest = hold.longest_seconds, hold.shortest_seconds
    if (most := _walltime(known, "resources_max")) is not None:
        yield _judge_walltime(most, most >= longest, longest, "resources_max", "longest_seconds", hold.queue)
    if (least := _walltime(known, "resources_min")) is not None:
        yield _judge_walltime(least, least <= shortest, shortest, "resources_min", "shortest_seconds", hold.queue)


def _walltime(known: Admission, kind: str) -> float | None:
    """The limit in seconds: that of the queue, or else of the server."""
    tables = [table for it in (known.queue, known.server) if isinstance(table := it.get(kind), dict)]
    times = [table["walltime"] for table in tables if "walltime" in table]
    return duration_seconds(times[0]) if times else None


def _judge_walltime(limit: float, ok: bool, ours: float, kind: str, setting: str, queue: str) -> Finding:
    remedy = f"scavenger.pbs.hold.{setting} = {limit:.0f}, or another {kind}.walltime: PBS refuses other placeholders"
    return judge(f"{kind}.walltime of {queue}", ok, f"{limit:.0f} s, {setting} is {ours:.0f} s", remedy)


def _preemptive(known: Admission) -> Finding:
    check, folder = "preemptive_sched", known.scheduler.get("sched_priv", "PBS_HOME/sched_priv")
    if known.scheduler_file is None:
        found = f"can't be asked for: see that {folder}/sched_config of the server has `preemptive_sched: true ALL`"
        return Finding(check, True, found)
    lines = _PREEMPTIVE.findall(known.scheduler_file)
    values = [" ".join(filter(None, line)) for line in lines]
    on = bool(lines) and all(value.lower() == "true" for value, _ in lines)
    remedy = f"`preemptive_sched: true ALL` in {folder}/sched_config, then kill -HUP the scheduler: else main jobs wait"
    return judge(check, on, ", ".join(values) or "not set", remedy)
