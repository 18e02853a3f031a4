"""`malletrain doctor --source pbs`: whether PBS is set up so that it gets nodes back quickly."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from malletrain.cli.operate.doctor_checks import Finding, clocks, examine_queries, judge, programs, run_query
from malletrain.common.untrusted_json import UntrustedJsonError, parse_object
from malletrain.runtime.access.installation import own_user
from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.pbs import pbs_source
from malletrain.scavenger.sources.schedulers.settings import HoldSettings, PbsSettings
from malletrain.scavenger.sources.schedulers.tolerant_json import read_answer

_RESOURCES = re.compile(r'^resources:\s*"([^"\n]*)"', re.MULTILINE)
_HOOK = re.compile(r"^Hook (\S+)$", re.MULTILINE)
_ENABLED = re.compile(r"^\s+enabled = true$", re.MULTILINE | re.IGNORECASE)
_CGROUPS = "pbs_cgroups"
_RULE = re.compile(r"^\s*([abc])(?:\s+(\*|\d{1,9}):(\*|\d{1,9})\s+([rwm]+))?\s*$", re.ASCII)
_GPU = re.compile(r"^nvidia\d+$", re.ASCII)
_NVIDIA = "195"
"""Major number of NVIDIA's devices; Linux reserves it for them."""
_FIRST_CONTROL = 254
"""Minor numbers below are those of GPUs: 254 and 255 are nvidia-modeset and nvidiactl, which each job needs."""

_WITHOUT = {
    "devices": "no job is told its GPUs, and our workers do not start",
    "cpuset": "jobs on a node use each other's cores",
    "memory": "a job can use up the memory of the others on its node",
}
"""What follows where a part of the hook is off."""


def judge_gpus(
    nodes: Mapping[str, Mapping[str, Any]], scheduler_file: str | None, hooks: str, cgroups: str = ""
) -> Iterator[Finding]:
    """Checks for `units = "gpus"`.

    Args:
        nodes: `pbsnodes -av -F json`, by name of the vnode.
        scheduler_file: The text of sched_config; None where it can't be read.
        hooks: `qmgr -c 'list pbshook'` and `'list hook'`; empty where this user may not ask.
        cgroups: `qmgr -c 'export hook pbs_cgroups application/x-config default'`; the same.
    """
    tables = [entry.get("resources_available") for entry in nodes.values()]
    having = sum(1 for table in tables if isinstance(table, dict) and table.get("ngpus"))
    remedy = "qmgr -c 'set node NODE resources_available.ngpus = 4', or the hook pbs_cgroups, which counts them"
    yield judge("GPUs of vnodes", having > 0, f"{having} of {len(nodes)} vnodes have ngpus", remedy)
    if scheduler_file is None:
        yield Finding("ngpus", True, "can't be asked for: see that ngpus is in `resources:` of sched_config")
    else:
        lines = _RESOURCES.findall(scheduler_file)
        listed = bool(lines) and "ngpus" in {word.strip() for word in lines[-1].split(",")}
        remedy = "add ngpus to `resources:` in sched_config, then kill -HUP the scheduler: else GPUs are given twice"
        yield judge("ngpus", listed, f"{'in' if listed else 'not in'} `resources:` of sched_config", remedy)
    if not hooks.strip():
        yield Finding("hook of GPUs", True, f"can't be asked for: see that {_CGROUPS} is enabled, with `devices`")
        return
    enabled = enabled_hooks(hooks)
    remedy = (
        f"enable {_CGROUPS} with `devices` (qmgr -c 'set hook {_CGROUPS} enabled = true'): else nothing keeps jobs "
        "on a node from the GPUs, CPUs, memory of others; workers start only where a hook sets CUDA_VISIBLE_DEVICES"
    )
    others = [name for name in enabled if name != _CGROUPS]
    found = f"{_CGROUPS} {'on' if _CGROUPS in enabled else 'off'}" + (
        f", others: {', '.join(others)}" if others else ""
    )
    yield judge("hook of GPUs", _CGROUPS in enabled, found, remedy)
    if _CGROUPS in enabled:
        yield _judge_cgroups(cgroups)


def _judge_cgroups(text: str) -> Finding:
    """Which limits the hook enforces for jobs that share a node."""
    name = f"{_CGROUPS}: what is kept apart"
    remedy = f"qmgr -c 'export hook {_CGROUPS} application/x-config default' >FILE; edit it; `import` it again"
    if not text.strip():
        return Finding(name, True, f"can't be asked for: see that {', '.join(_WITHOUT)} are enabled in its file")
    try:
        parts = parse_object(text.encode())["cgroup"]
        off = [part for part in _WITHOUT if parts.get(part, {}).get("enabled") is not True]
        left_out = sorted({str(host) for part in _WITHOUT for host in parts.get(part, {}).get("exclude_hosts", ())})
        opening = [entry for entry in parts.get("devices", {}).get("allow", ()) if opens_gpus(entry)]
    except (UntrustedJsonError, TypeError, KeyError, AttributeError):
        return Finding(name, False, "its file can't be read", remedy)
    if off:
        state = "; ".join(f"{part} off: {_WITHOUT[part]}" for part in off)
        return Finding(name, False, state, remedy)
    if opening:
        state = f"every job may open every GPU: `allow` of devices has {opening[0]!r}"
        return Finding(name, False, state, f"{remedy}, with the list `allow` of {_DOC}")
    if left_out:
        return Finding(name, False, f"nothing on {', '.join(left_out[:10])} (exclude_hosts)", remedy)
    return Finding(name, True, "GPUs, cores and memory")


def opens_gpus(entry: object) -> bool:
    """Whether an entry of `allow` lets each job use GPUs that were not given to it.

    `allow` is applied after the hook has denied the GPUs, so that `c *:* rwm`, which the hook comes with, opens all of
    them again. CUDA opens a GPU for reading and writing: an entry that lacks `w` opens none.

    Args:
        entry: `TYPE MAJOR:MINOR ACCESS` of the kernel's cgroup v1, or a list: a name below /dev, the access, and more.
    """
    if isinstance(entry, list):
        device, access = ([str(word) for word in entry] + ["", ""])[:2]
        return bool(_GPU.match(device)) and "w" in access
    match = _RULE.match(str(entry))
    if match is None:
        return False
    kind, major, minor, access = match.groups()
    if kind == "a":  # the kernel takes it for all devices and all access, whatever follows
        return True
    if kind == "b" or major not in ("*", _NVIDIA) or "w" not in (access or ""):
        return False
    return minor == "*" or int(minor) < _FIRST_CONTROL


def enabled_hooks(text: str) -> list[str]:
    """Names of the enabled hooks that `qmgr -c 'list hook'` prints."""
    _, *pieces = _HOOK.split(text)
    return [name for name, attributes in zip(pieces[::2], pieces[1::2], strict=True) if _ENABLED.search(attributes)]


_LIMIT = re.compile(r'\[([uo]):"?([^="\]]+)"?=(\d+)\]')
_EACH_KIND = ("max_run", "max_queued")
_OLD_KINDS = ("max_running", "max_user_run", "max_queuable")
_PREEMPTIVE = re.compile(r"^preemptive_sched:[ \t]+(\w+)(?:[ \t]+(\w+))?", re.MULTILINE)
_SEVERAL = 2


@dataclass(frozen=True)
class PbsReport:
    """What PBS says about its configuration.

    Attributes:
        queues: `qstat -Qf -F json`, by name of the queue.
        server: `qstat -Bf -F json`, of the server.
        scheduler: `qmgr -c 'list sched'`, by name; empty where this user may not ask.
        time: Its time in seconds since the epoch; None if it did not say.
        hosts: By node: the host of its mom.
        scheduler_file: The text of sched_config; None where it can't be read.
        user: Whose placeholders there are.
        nodes: `pbsnodes -av -F json`, by name of the vnode.
        hooks: `qmgr -c 'list pbshook'` and `'list hook'`; empty where this user may not ask.
        cgroups: The file of the hook pbs_cgroups, as qmgr exports it; the same.
    """

    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    scheduler: Mapping[str, str] = field(default_factory=dict)
    time: float | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)
    scheduler_file: str | None = None
    user: str = field(default_factory=own_user)
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hooks: str = ""
    cgroups: str = ""


def judge_admission(report: PbsReport, hold: HoldSettings) -> Iterator[Finding]:
    """Judge whether placeholders are taken, and started. Pure.

    Args:
        report: What PBS says; it knows the queue of placeholders.
        hold: How nodes are held.
    """
    name, queue = hold.queue, report.queues[hold.queue]
    yield from _permissions(report, name)
    tables = (("server", report.server), ("sched", report.scheduler))
    off = [where for where, table in tables if _is(table, "scheduling", "False")]
    remedy = "; ".join(f"qmgr -c 'set {where} scheduling = True'" for where in off) + ": else no job is started at all"
    yield judge("scheduling", not off, f"off for: {', '.join(off)}" if off else "on", remedy)
    routed = _is(queue, "from_route_only", "True")
    remedy = f"qmgr -c 'unset queue {name} from_route_only': placeholders are submitted to {name} itself"
    yield judge(f"from_route_only of {name}", not routed, routed, remedy)
    yield _limit(report, name)
    yield from _walltimes(report, hold)
    yield _preemptive(report)


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
    by_kind = {}
    for kind in _EACH_KIND:
        limits = {(who, name): int(count) for who, name, count in _LIMIT.findall(str(attributes.get(kind, "")))}
        own = limits.get(("u", user), limits.get(("u", "PBS_GENERIC")))
        known = [count for count in (own, limits.get(("o", "PBS_ALL"))) if count is not None]
        if known:
            by_kind[kind] = min(known)
    for kind in _OLD_KINDS:
        if str(attributes.get(kind, "")).isdigit():
            by_kind[kind] = int(attributes[kind])
    return by_kind


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


def _permissions(report: PbsReport, name: str) -> Iterator[Finding]:
    for where, attributes in ((f"queue {name}", report.queues[name]), ("server", report.server)):
        if _is(attributes, "acl_user_enable", "True"):
            entries = str(attributes.get("acl_users", ""))
            remedy = f"qmgr -c 'set {where} acl_users += {report.user}': else no placeholder is taken"
            found = f"only for {entries or 'nobody'}; we are {report.user}"
            yield judge(f"permission of {where}", allows(entries, report.user), found, remedy)
        for kind in ("group", "host"):
            if _is(attributes, f"acl_{kind}_enable", "True"):
                found = f"{kind}s: only {attributes.get(f'acl_{kind}s', 'none')}; --try tells whether we are among them"
                yield Finding(f"permission by {kind} of {where}", True, found)


def _limit(report: PbsReport, name: str) -> Finding:
    limits = {
        f"{kind} of {where}": count
        for where, attributes in ((f"queue {name}", report.queues[name]), ("server", report.server))
        for kind, count in running_limits(attributes, report.user).items()
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
    nodes = len(set(report.hosts.values()))
    return judge(check, limits[lowest] >= (nodes or _SEVERAL), f"{found}, {nodes or '?'} nodes", remedy)


def _walltimes(report: PbsReport, hold: HoldSettings) -> Iterator[Finding]:
    longest, shortest = hold.longest_seconds, hold.shortest_seconds
    if (most := _walltime(report, hold, "resources_max")) is not None:
        yield _judge_walltime(most, most >= longest, longest, "resources_max", "longest_seconds", hold.queue)
    if (least := _walltime(report, hold, "resources_min")) is not None:
        yield _judge_walltime(least, least <= shortest, shortest, "resources_min", "shortest_seconds", hold.queue)


def _walltime(report: PbsReport, hold: HoldSettings, kind: str) -> float | None:
    """The limit in seconds: that of the queue, or else of the server."""
    tables = [table for it in (report.queues[hold.queue], report.server) if isinstance(table := it.get(kind), dict)]
    times = [table["walltime"] for table in tables if "walltime" in table]
    return duration_seconds(times[0]) if times else None


def _judge_walltime(limit: float, ok: bool, ours: float, kind: str, setting: str, queue: str) -> Finding:
    remedy = f"scavenger.pbs.hold.{setting} = {limit:.0f}, or another {kind}.walltime: PBS refuses other placeholders"
    return judge(f"{kind}.walltime of {queue}", ok, f"{limit:.0f} s, {setting} is {ours:.0f} s", remedy)


def _preemptive(report: PbsReport) -> Finding:
    check, folder = "preemptive_sched", report.scheduler.get("sched_priv", "PBS_HOME/sched_priv")
    if report.scheduler_file is None:
        found = f"can't be asked for: see that {folder}/sched_config of the server has `preemptive_sched: true ALL`"
        return Finding(check, True, found)
    lines = _PREEMPTIVE.findall(report.scheduler_file)
    values = [" ".join(filter(None, line)) for line in lines]
    on = bool(lines) and all(value.lower() == "true" for value, _ in lines)
    remedy = f"`preemptive_sched: true ALL` in {folder}/sched_config, then kill -HUP the scheduler: else main jobs wait"
    return judge(check, on, ", ".join(values) or "not set", remedy)


_DOC = "docs/operators/pbs.md"
_DEFAULT_EXPRESS = 150
_MAX_FILE = 1 << 20


def examine_pbs(section: PbsSettings) -> Iterator[Finding]:
    """All checks, in the order in which problems should be solved."""
    names = [section.pbsnodes, section.qstat, section.pbs_rstat]
    yield programs([*names, *(("qsub", "qdel") if section.hold.queue else ())], "scavenger.pbs.pbsnodes..")
    queues = run_query([section.qstat, "-Qf", "-F", "json"])
    yield judge("server", queues.ok, "answers" if queues.ok else queues.error, "see PBS_SERVER and the network")
    if not queues.ok:
        return
    yield from examine_queries(lambda: pbs_source(section, SystemClock()))
    queue_list, server = parse_json(queues.text), parse_json(run_query([section.qstat, "-Bf", "-F", "json"]).text)
    for command, answer in (("-Qf", queue_list), ("-Bf", server)):
        if not answer:
            remedy = f"see what it prints: {section.qstat} {command} -F json"
            yield Finding(f"qstat {command}", False, "prints no JSON that can be read", remedy)
    if not queue_list:
        return
    when = queue_list.get("timestamp")
    scheduler = parse_scheduler(run_query(["qmgr", "-c", "list sched"]).text)
    by_gpu = section.units == "gpus"
    report = PbsReport(
        queues=_tables(queue_list.get("Queue")),
        server=next(iter(_tables(server.get("Server")).values()), {}),
        scheduler=scheduler,
        time=when if isinstance(when, int | float) else None,
        hosts=pbs_hosts(section),
        scheduler_file=_scheduler_file(scheduler),
        nodes=_nodes(section) if by_gpu else {},
        hooks="".join(run_query(["qmgr", "-c", f"list {kind}"]).text for kind in ("pbshook", "hook")) if by_gpu else "",
        cgroups=run_query(["qmgr", "-c", "export hook pbs_cgroups application/x-config default"]).text
        if by_gpu
        else "",
    )
    yield from judge_pbs(report, section, time.time())


def pbs_hosts(section: PbsSettings) -> dict[str, str]:
    """The host of each vnode's mom, as PBS names it; the vnode's own name where PBS does not say."""
    return {name: str(entry.get("Mom") or name) for name, entry in _nodes(section).items()}


def _nodes(section: PbsSettings) -> dict[str, dict[str, Any]]:
    return _tables(parse_json(run_query([section.pbsnodes, "-av", "-F", "json"]).text).get("nodes"))


def _scheduler_file(scheduler: Mapping[str, str]) -> str | None:
    """What sched_config says, where the server is on this machine and we may read it."""
    folder = scheduler.get("sched_priv", "")
    if not folder.startswith("/"):
        return None
    try:
        with Path(folder, "sched_config").open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_FILE)
    except OSError:
        return None


def _tables(section: object) -> dict[str, dict[str, Any]]:
    """The entries of a section that are tables."""
    return (
        {name: entry for name, entry in section.items() if isinstance(entry, dict)} if isinstance(section, dict) else {}
    )


def judge_pbs(report: PbsReport, section: PbsSettings, now: float) -> Iterator[Finding]:
    """Judge what PBS says. Pure.

    Args:
        report: What PBS says.
        section: Our settings.
        now: Seconds since the epoch.
    """
    yield clocks(now, report.time)
    for name in section.queues:
        known = name in report.queues
        yield judge(f"queue {name}", known, "exists" if known else "unknown", "see scavenger.pbs.queues")
    others = str(report.server.get("query_other_jobs", "False"))
    remedy = "qmgr -c 'set server query_other_jobs = True', or be an operator: else planned starts stay hidden"
    yield judge("jobs of others", others == "True", f"query_other_jobs = {others}", remedy)
    depth = report.server.get("backfill_depth", 1)
    remedy = "qmgr -c 'set server backfill_depth = 5', strict_ordering in sched_config: else few starts are estimated"
    yield judge("planned starts", depth != 0, f"backfill_depth = {depth}", remedy)
    if section.units == "gpus":
        yield from judge_gpus(report.nodes, report.scheduler_file, report.hooks, report.cgroups)
    if section.hold.queue:
        yield from _holding(report, section)
    else:
        remedy = "deploy/pbs/modifyvnode_hook.py, or name a preemptible queue in scavenger.pbs.hold.queue"
        yield Finding("reclaim", True, f"nodes are watched only; reclaims are pushed by a hook: {remedy}")


def parse_json(text: str) -> dict[str, Any]:
    """An answer of `-F json`; empty where it is none."""
    try:
        return read_answer(text)
    except UnreadableError:
        return {}


def parse_scheduler(text: str) -> dict[str, str]:
    """`qmgr -c 'list sched'`, by name."""
    return {match[1]: match[2] for match in re.finditer(r"^\s+(\w+) = (.*)$", text, re.MULTILINE)}


def _holding(report: PbsReport, section: PbsSettings) -> Iterator[Finding]:
    name = section.hold.queue
    queue = report.queues.get(name)
    if queue is None:
        yield Finding(f"queue {name}", False, "unknown", f"define it as in {_DOC}, or see scavenger.pbs.hold.queue")
        return
    open_ = queue.get("enabled") == "True" and queue.get("started") == "True"
    remedy = f"qmgr -c 'set queue {name} enabled = True', and started"
    yield judge(f"queue {name}", open_, f"enabled {queue.get('enabled')}, started {queue.get('started')}", remedy)
    yield from judge_admission(report, section.hold)
    kind = queue.get("queue_type", "Execution")
    remedy = f"an execution queue: jobs of a routing queue end up in others, where {name} does not find them again"
    yield judge(f"type of {name}", kind == "Execution", kind, remedy)
    express = _number(report.scheduler.get("preempt_queue_prio"), _DEFAULT_EXPRESS)
    own = _number(queue.get("Priority"), 0)
    remedy = f"Priority of {name} below preempt_queue_prio ({express}): else it is an express queue itself"
    yield judge(f"Priority of {name}", own < express, own, remedy)
    for main in section.queues:
        priority = _number(report.queues.get(main, {}).get("Priority"), 0)
        remedy = f"Priority of {main} of at least preempt_queue_prio ({express}): only express queues preempt"
        yield judge(f"Priority of {main}", priority >= express, priority, remedy)
    yield from _targets(report, name, express)
    yield _soft_walltime(queue, name)
    if not report.scheduler:
        yield Finding("preemption", False, "qmgr does not tell this user", "ask an operator for: qmgr -c 'list sched'")
        return
    order = report.scheduler.get("preempt_order", "")
    remedy = "preempt_order with D: placeholders are not rerunnable, so that PBS can't requeue (R) but only delete them"
    yield judge("preempt_order", "D" in order, order or "unset", remedy)
    levels = report.scheduler.get("preempt_prio", "")
    remedy = "preempt_prio = express_queue, normal_jobs; and preemptive_sched in sched_config"
    yield judge("preempt_prio", "express_queue" in levels, levels or "unset", remedy)


def _targets(report: PbsReport, name: str, express: int) -> Iterator[Finding]:
    """Whether jobs of express queues may preempt placeholders only, and not jobs of other people.

    Seen on a live server: without preempt_targets, a main job had a job of somebody else in a third queue deleted.
    """
    for main, queue in sorted(report.queues.items()):
        if main == name or _number(queue.get("Priority"), 0) < express:
            continue
        defaults = queue.get("resources_default")
        targets = str(defaults.get("preempt_targets", "")) if isinstance(defaults, dict) else ""
        remedy = (
            f"qmgr -c 'set queue {main} resources_default.preempt_targets = \"queue={name}\"': else jobs of {main} "
            "may have running jobs of other people deleted"
        )
        allowed = targets.replace(" ", "").lower() == f"queue={name}".lower()
        yield judge(f"preempt_targets of {main}", allowed, targets or "unset: every queue", remedy)


def _soft_walltime(queue: Mapping[str, Any], name: str) -> Finding:
    defaults = queue.get("resources_default")
    soft = str(defaults.get("soft_walltime", "")) if isinstance(defaults, dict) else ""
    remedy = (
        f"qmgr -c 'set queue {name} resources_default.soft_walltime = 00:01:00': else PBS plans starts of main jobs "
        "for after the time limits of placeholders"
    )
    return judge(f"soft_walltime of {name}", bool(soft), soft or "unset", remedy)


def _number(value: object, otherwise: int) -> int:
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.strip().isdigit()) else otherwise
