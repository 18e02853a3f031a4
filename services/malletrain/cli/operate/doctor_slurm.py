"""`malletrain doctor --source slurm`: whether Slurm is set up so that it gets nodes back quickly."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from malletrain.cli.operate.doctor_checks import (
    CommandResult,
    Finding,
    clocks,
    examine_queries,
    judge,
    programs,
    run_query,
)
from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.sources.schedulers.settings import SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm import slurm_source

_MAX_GRACE_SECONDS = 30
_LONG_BACKFILL_SECONDS = 10
_PAIR = re.compile(r"(\S+?)=(\S*)")
_NUMBER = re.compile(r"\d+")
_DOC = "docs/operators/slurm.md"
_ACCOUNTS_NEED_ASSOCIATIONS = (23, 2)
"""From this release on, AllowAccounts has no effect without AccountingStorageEnforce=associations."""


@dataclass(frozen=True)
class SlurmReport:
    """What Slurm says about its configuration.

    Attributes:
        config: `scontrol show config`, by name.
        partitions: `scontrol -o show partition`, by name of the partition, then of the field.
        time: Its time in seconds since the epoch; None if it did not say.
        submission: Result of a test submission into the placeholders' partition; None where there is none.
        ssh: Result of a command over ssh on one node; None where no ssh is needed, or no node is idle.
    """

    config: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    time: float | None = None
    submission: CommandResult | None = None
    ssh: CommandResult | None = None


def examine_slurm(section: SlurmSettings) -> Iterator[Finding]:
    """All checks, in the order in which problems should be solved."""
    names = [section.sinfo, section.squeue, section.scontrol]
    yield programs([*names, *(("sbatch", "srun", "scancel") if section.hold.queue else ())], "scavenger.slurm.sinfo..")
    config = run_query([section.scontrol, "show", "config"])
    yield judge(
        "slurmctld", config.ok, "answers" if config.ok else config.error, "see SLURM_CONF, munge and the network"
    )
    if not config.ok:
        return
    if section.partitions:
        yield from examine_queries(lambda: slurm_source(section, SystemClock()))
    yield from judge_slurm(_report(section, config.text), section, time.time())


def judge_slurm(report: SlurmReport, section: SlurmSettings, now: float) -> Iterator[Finding]:
    """Judge what Slurm says. Pure.

    Args:
        report: What Slurm says.
        section: Our settings.
        now: Seconds since the epoch.
    """
    yield clocks(now, report.time)
    for name in section.partitions:
        known = name in report.partitions
        yield judge(f"partition {name}", known, "exists" if known else "unknown", "see scavenger.slurm.partitions")
    if not section.partitions:
        yield Finding("partitions", False, "none named", "set scavenger.slurm.partitions")
    backfill = report.config.get("SchedulerType", "")
    yield judge(
        "planned starts",
        backfill == "sched/backfill",
        backfill,
        "only sched/backfill plans; without it MalleTrain goes by how long nodes stayed idle in the past",
    )
    if section.hold.queue:
        yield from _holding(report, section)
    else:
        yield from _watching(report)


def parse_config(text: str) -> tuple[dict[str, str], float | None]:
    """`scontrol show config`: its entries, and Slurm's time in seconds since the epoch (with TZ=UTC).

    Settings that may have several values are `Prolog[0]`, `Prolog[1]`.. from Slurm 24.05 on, and are missing where
    there is none: here they are one entry, with commas.
    """
    entries: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if not separator:
            continue
        plain, indexed, _ = name.strip().partition("[")
        entries[plain] = f"{entries[plain]},{value.strip()}" if indexed and plain in entries else value.strip()
    stamp = re.search(r"as of (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", text)
    when = datetime.fromisoformat(stamp[1]).replace(tzinfo=UTC).timestamp() if stamp else None
    return entries, when


def parse_partitions(text: str) -> dict[str, dict[str, str]]:
    """`scontrol -o show partition`, by name."""
    rows = [dict(_PAIR.findall(line)) for line in text.splitlines() if line.strip()]
    return {row["PartitionName"]: row for row in rows if "PartitionName" in row}


def slurm_hosts(section: SlurmSettings) -> dict[str, str]:
    """The address or host of each node, as Slurm knows it; none where Slurm does not say."""
    argv = [section.sinfo, "-h", "-N", "-p", ",".join(section.partitions), "-o", "%N|%o"]
    lines = run_query(argv).text.splitlines() if section.partitions else []
    return {name: host for name, _, host in (line.strip().partition("|") for line in lines) if host}


def size_of_a_placeholder(section: SlurmSettings) -> tuple[str, ...]:
    """Options of sbatch, without a node."""
    if section.units == "gpus":
        share = section.gpu_share
        return ("--ntasks=1", "--gres=gpu:1", f"--cpus-per-task={share.cpus or 1}", f"--mem={share.memory_mib or 1}M")
    return ("--exclusive", "--mem=0")


def _report(section: SlurmSettings, config_text: str) -> SlurmReport:
    config, when = parse_config(config_text)
    submission = ssh = None
    if section.hold.queue:
        test = [
            "sbatch",
            "--test-only",
            f"--partition={section.hold.queue}",
            *("--nodes=1", "--time=1", *size_of_a_placeholder(section)),
            *section.hold.options,
        ]
        submission = run_query([*test, "--wrap=true"])
    else:
        idle = run_query(
            [section.sinfo, "-h", "-N", "-p", ",".join(section.partitions), "-t", "idle", "-o", "%N"]
        ).text.split()
        if idle:
            command = section.hold.ssh or ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
            ssh = run_query([*command, idle[0], "true"])
    partitions = parse_partitions(run_query([section.scontrol, "-o", "show", "partition"]).text)
    return SlurmReport(config, partitions, when, submission, ssh)


def _holding(report: SlurmReport, section: SlurmSettings) -> Iterator[Finding]:
    """With placeholders: whether Slurm ends them quickly, and tells them."""
    queue, config = section.hold.queue, report.config
    partition = report.partitions.get(queue)
    if partition is None:
        yield Finding(
            f"partition {queue}", False, "unknown", f"define it as in {_DOC}, or see scavenger.slurm.hold.queue"
        )
        return
    state = partition.get("State", "")
    yield judge(f"partition {queue}", state == "UP", state, f"scontrol update PartitionName={queue} State=UP")
    kind = config.get("PreemptType", "")
    yield judge(
        "PreemptType",
        kind in ("preempt/partition_prio", "preempt/qos"),
        kind,
        "PreemptType=preempt/partition_prio in slurm.conf: without it the main queue waits for placeholders to end",
    )
    mode = partition.get("PreemptMode", "")
    yield judge(
        f"PreemptMode of {queue}",
        mode in ("CANCEL", "REQUEUE"),
        mode,
        f"PreemptMode=CANCEL for {queue}: OFF keeps the node, SUSPEND and GANG keep its memory and GPUs, and with "
        "PRIORITY main jobs of lower priority wait",
    )
    tier = _number(partition.get("PriorityTier", ""))
    for name in section.partitions:
        main = report.partitions.get(name, {})
        above = _number(main.get("PriorityTier", "")) > tier
        found = f"{main.get('PriorityTier', '?')}, {queue} {tier}"
        remedy = f"PriorityTier of {name} above that of {queue}: only then may it preempt"
        yield judge(f"PriorityTier of {name}", above or kind == "preempt/qos", found, remedy)
    if kind == "preempt/partition_prio":
        yield from _others(report, section)
    if section.units == "gpus":
        yield from _shared_nodes(config, partition, queue)
    yield from _signals(config, partition, section)
    yield _time_limit(partition, section)
    yield from _accounts(config, partition, queue)
    if report.submission is not None:
        found = "a placeholder would be taken" if report.submission.ok else report.submission.error
        remedy = f"let this user submit to {queue} (AllowAccounts, AllowGroups, AllowQos, an association)"
        yield judge("permission", report.submission.ok, found, remedy)
    yield Finding("ssh", True, "not needed: agents run in placeholders")


def _others(report: SlurmReport, section: SlurmSettings) -> Iterator[Finding]:
    """Whether jobs of partitions that are neither ours nor the main ones are safe from preemption.

    A partition without a PreemptMode of its own has that of the cluster, which preemption of placeholders needs.
    """
    tiers = [_number(report.partitions.get(name, {}).get("PriorityTier", "")) for name in section.partitions]
    highest = max(tiers, default=0)
    for name, partition in sorted(report.partitions.items()):
        if name == section.hold.queue or _number(partition.get("PriorityTier", "")) >= highest:
            continue
        mode = partition.get("PreemptMode", "")
        remedy = f"PreemptMode=OFF for {name}: else main jobs may end jobs of other people there"
        yield judge(f"PreemptMode of {name}", mode == "OFF", mode or "unset", remedy)


def _shared_nodes(config: Mapping[str, str], partition: Mapping[str, str], queue: str) -> Iterator[Finding]:
    """With single GPUs: whether Slurm gives parts of nodes, and keeps each job to its own part."""
    select = config.get("SelectType", "")
    by_parts = "cons" in select and partition.get("OverSubscribe", "") != "EXCLUSIVE"
    yield judge(
        "parts of nodes",
        by_parts,
        f"{select}, OverSubscribe={partition.get('OverSubscribe', '?')} of {queue}",
        f"SelectType=select/cons_tres, and OverSubscribe=NO for {queue}: whole nodes are given else",
    )
    memory = config.get("SelectTypeParameters", "")
    yield judge(
        "memory of parts",
        "memory" in memory.lower(),
        memory,
        "SelectTypeParameters=CR_Core_Memory: else we and main jobs on a node have no share of its memory",
    )
    plugins = config.get("TaskPlugin", "")
    yield judge(
        "CPUs of parts",
        "cgroup" in plugins,
        plugins,
        "TaskPlugin=task/cgroup,task/affinity, with ConstrainCores, ConstrainRAMSpace and ConstrainDevices=yes in "
        "cgroup.conf: else our trainings take CPU time, memory and GPUs of main jobs beside them",
    )


def _signals(config: Mapping[str, str], partition: Mapping[str, str], section: SlurmSettings) -> Iterator[Finding]:
    """Times between SIGTERM and SIGKILL, and the end of processes."""
    needed = section.hold.grace_seconds
    grace, wait = _number(partition.get("GraceTime", "")), _number(config.get("KillWait", ""))
    yield judge(
        "GraceTime",
        (grace == 0 or grace > needed) and grace <= _MAX_GRACE_SECONDS,
        f"{grace} s",
        f"above scavenger.slurm.hold.grace_seconds ({needed:g}) and at most {_MAX_GRACE_SECONDS}: a worker that "
        "hangs keeps the main job waiting for two to three times as long",
    )
    yield judge(
        "KillWait",
        needed < wait <= _MAX_GRACE_SECONDS * 2,
        f"{wait} s",
        f"above {needed:g} s; Slurm's own 30 s will do",
    )
    track = config.get("ProctrackType", "")
    yield judge(
        "end of processes",
        track != "proctrack/pgid",
        track,
        "ProctrackType=proctrack/cgroup: pgid leaves processes behind that made a group of their own",
    )
    yield Finding("signal", True, "the agent is a step of srun: it gets SIGTERM when preemption begins, not at its end")
    complete = _number(config.get("CompleteWait", "0"))
    remedy = "CompleteWait=0: the main queue waits so long after each placeholder that ends"
    yield judge("CompleteWait", complete == 0, f"{complete} s", remedy)
    yield Finding("start after preemption", True, start_after_preemption(config))
    back = config.get("ReturnToService", "")
    yield judge(
        "ReturnToService", back != "2", back, "0 or 1: with 2, nodes that an operator took down come back as idle"
    )


def start_after_preemption(config: Mapping[str, str]) -> str:
    """What would let main jobs start sooner that end placeholders: advice, since each has its price for the cluster."""
    words = dict(word.partition("=")[::2] for word in config.get("SchedulerParameters", "").split(","))
    advice = []
    if any("defer" in word for word in words):
        advice.append("defer: a main job that preempts waits for one more pass")
    if (delay := _number(words.get("batch_sched_delay", "3"))) > 1:
        advice.append(f"batch_sched_delay is {delay} s: with 0 or 1 main jobs start up to {delay} s sooner")
    if (interval := _number(words.get("bf_interval", "30"))) > _LONG_BACKFILL_SECONDS:
        advice.append(
            f"bf_interval is {interval} s: a backfilled main job that preempts waits for one more cycle; "
            f"{_LONG_BACKFILL_SECONDS} s or less where cycles are short"
        )
    if config.get("Epilog", "(null)") in ("", "(null)"):
        advice.append("no Epilog: placeholders cancel themselves at their end, which does nearly as much")
    return "; ".join(advice) or "as soon as the node is empty"


def _time_limit(partition: Mapping[str, str], section: SlurmSettings) -> Finding:
    limit = partition.get("MaxTime", "")
    seconds = _seconds(limit)
    remedy = f"MaxTime of at least {section.hold.shortest_seconds:g} s (scavenger.slurm.hold.shortest_seconds)"
    return judge("MaxTime", seconds is None or seconds >= section.hold.shortest_seconds, limit, remedy)


def _accounts(config: Mapping[str, str], partition: Mapping[str, str], queue: str) -> Iterator[Finding]:
    """Whether the accounts that a partition allows, where it names some, keep anybody out."""
    allowed = partition.get("AllowAccounts", "ALL")
    release = tuple(int(part) for part in _NUMBER.findall(config.get("SLURM_VERSION", ""))[:2])
    if allowed == "ALL" or release < _ACCOUNTS_NEED_ASSOCIATIONS:
        return
    enforced = config.get("AccountingStorageEnforce", "none")
    remedy = (
        f"AllowGroups=GROUP for {queue}, or AccountingStorageEnforce=associations: without the latter Slurm "
        "23.02 and later lets every account in"
    )
    yield judge(f"AllowAccounts of {queue}", "associations" in enforced, f"{allowed}, enforced: {enforced}", remedy)


def _watching(report: SlurmReport) -> Iterator[Finding]:
    """Without placeholders: whether a Prolog tells us that a node is wanted, and whether ssh works."""
    prolog = report.config.get("Prolog", "(null)")
    known = prolog not in ("", "(null)")
    yield judge(
        "Prolog",
        known,
        prolog if known else "none",
        "deploy/slurm/prolog.sh as Prolog (with PrologFlags=Alloc): else main jobs overlap with us until the next "
        "poll; or name a preemptible partition in scavenger.slurm.hold.queue",
    )
    flags = report.config.get("PrologFlags", "(null)")
    yield judge(
        "PrologFlags",
        "alloc" in flags.lower(),
        flags,
        "PrologFlags=Alloc: else the Prolog of a job's other nodes runs only when a step begins there",
    )
    if report.ssh is None:
        yield Finding("ssh", True, "not tried: no node is idle")
    else:
        found = "a node answers" if report.ssh.ok else report.ssh.error
        remedy = "let this user in on the nodes (a key without a passphrase, pam_slurm_adopt); or use placeholders"
        yield judge("ssh", report.ssh.ok, found, remedy)


def _number(text: str) -> int:
    """The first number in a text, e.g. 30 in "30 sec"; 0 if there is none."""
    match = _NUMBER.search(text)
    return int(match[0]) if match else 0


def _seconds(limit: str) -> float | None:
    """Seconds of `1-00:00:00` or `00:30:00`; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", limit)
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
