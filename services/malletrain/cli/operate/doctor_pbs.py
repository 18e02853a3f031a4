"""`malletrain doctor --source pbs`: whether PBS is set up so that it gets nodes back quickly."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from malletrain.cli.operate.doctor_checks import Finding, ask, clocks, judge, programs
from malletrain.cli.operate.doctor_pbs_gpus import judge_gpus
from malletrain.cli.operate.doctor_pbs_limits import Admission, judge_admission
from malletrain.cli.operate.doctor_queries import examine_queries
from malletrain.runtime.access.installation import own_user
from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.pbs import pbs_source
from malletrain.scavenger.sources.schedulers.settings import PbsSettings
from malletrain.scavenger.sources.schedulers.tolerant_json import read_answer

_DOC = "docs/operators/pbs.md"
_DEFAULT_EXPRESS = 150
_MAX_FILE = 1 << 20


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


def examine_pbs(section: PbsSettings) -> Iterator[Finding]:
    """All checks, in the order in which problems should be solved."""
    names = [section.pbsnodes, section.qstat, section.pbs_rstat]
    yield programs([*names, *(("qsub", "qdel") if section.hold.queue else ())], "scavenger.pbs.pbsnodes..")
    queues = ask([section.qstat, "-Qf", "-F", "json"])
    yield judge("server", queues.ok, "answers" if queues.ok else queues.error, "see PBS_SERVER and the network")
    if not queues.ok:
        return
    yield from examine_queries(lambda: pbs_source(section, SystemClock()))
    asked, server = parse_json(queues.text), parse_json(ask([section.qstat, "-Bf", "-F", "json"]).text)
    for command, answer in (("-Qf", asked), ("-Bf", server)):
        if not answer:
            remedy = f"see what it prints: {section.qstat} {command} -F json"
            yield Finding(f"qstat {command}", False, "prints no JSON that can be read", remedy)
    if not asked:
        return
    when = asked.get("timestamp")
    scheduler = parse_scheduler(ask(["qmgr", "-c", "list sched"]).text)
    by_gpu = section.units == "gpus"
    report = PbsReport(
        queues=_tables(asked.get("Queue")),
        server=next(iter(_tables(server.get("Server")).values()), {}),
        scheduler=scheduler,
        time=when if isinstance(when, int | float) else None,
        hosts=pbs_hosts(section),
        scheduler_file=_scheduler_file(scheduler),
        nodes=_nodes(section) if by_gpu else {},
        hooks="".join(ask(["qmgr", "-c", f"list {kind}"]).text for kind in ("pbshook", "hook")) if by_gpu else "",
        cgroups=ask(["qmgr", "-c", "export hook pbs_cgroups application/x-config default"]).text if by_gpu else "",
    )
    yield from judge_pbs(report, section, time.time())


def pbs_hosts(section: PbsSettings) -> dict[str, str]:
    """By vnode: the host of its mom, as PBS names it; nothing where PBS does not say."""
    return {name: str(entry.get("Mom") or name) for name, entry in _nodes(section).items()}


def _nodes(section: PbsSettings) -> dict[str, dict[str, Any]]:
    return _tables(parse_json(ask([section.pbsnodes, "-av", "-F", "json"]).text).get("nodes"))


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


def _tables(found: object) -> dict[str, dict[str, Any]]:
    """Those of a section's entries that are tables."""
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)} if isinstance(found, dict) else {}


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
    return {found[1]: found[2] for found in re.finditer(r"^\s+(\w+) = (.*)$", text, re.MULTILINE)}


def _holding(report: PbsReport, section: PbsSettings) -> Iterator[Finding]:
    name = section.hold.queue
    queue = report.queues.get(name)
    if queue is None:
        yield Finding(f"queue {name}", False, "unknown", f"define it as in {_DOC}, or see scavenger.pbs.hold.queue")
        return
    open_ = queue.get("enabled") == "True" and queue.get("started") == "True"
    remedy = f"qmgr -c 'set queue {name} enabled = True', and started"
    yield judge(f"queue {name}", open_, f"enabled {queue.get('enabled')}, started {queue.get('started')}", remedy)
    nodes = len(set(report.hosts.values()))
    known = Admission(queue, report.server, report.scheduler, report.user, nodes, report.scheduler_file)
    yield from judge_admission(known, section.hold)
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
