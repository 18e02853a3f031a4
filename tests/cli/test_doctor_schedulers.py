from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from malletrain.cli.main import application
from malletrain.cli.operate.doctor_checks import (
    CommandResult,
    Finding,
    examine_queries,
    judge_end,
    judge_reach,
    other_machines,
    programs,
    run_query,
)
from malletrain.cli.operate.doctor_pbs import (
    PbsReport,
    judge_gpus,
    judge_pbs,
    opens_gpus,
    parse_json,
    parse_scheduler,
)
from malletrain.cli.operate.doctor_slurm import (
    SlurmReport,
    judge_slurm,
    parse_config,
    parse_partitions,
    size_of_a_placeholder,
    start_after_preemption,
)
from malletrain.cli.shared.settings import AllSettings
from malletrain.runtime.clock import SystemClock
from malletrain.scavenger.sources.schedulers.pbs import pbs_source
from malletrain.scavenger.sources.schedulers.settings import PbsSettings, SlurmSettings
from malletrain.scavenger.sources.schedulers.slurm import slurm_source
from tests.scavenger.recorded_commands import RecordedCommands
from tests.scavenger.samples import recording
from tests.support.shared import shared_path

HOLDING = SlurmSettings.model_validate({"partitions": ["main"], "hold": {"queue": "scav"}})
WATCHING = SlurmSettings.model_validate({"partitions": ["main"]})
CONFIG = {
    "PreemptType": "preempt/partition_prio",
    "SchedulerType": "sched/backfill",
    "KillWait": "30 sec",
    "CompleteWait": "0 sec",
    "ReturnToService": "1",
    "ProctrackType": "proctrack/cgroup",
    "Prolog": "(null)",
}
PARTITIONS = {
    "main": {"PriorityTier": "10", "PreemptMode": "OFF", "State": "UP"},
    "scav": {
        "PriorityTier": "1",
        "PreemptMode": "CANCEL",
        "GraceTime": "10",
        "State": "UP",
        "MaxTime": "1-00:00:00",
    },
}


def wrong(findings: Iterable[Finding]) -> set[str]:
    found = list(findings)
    assert all(entry.remedy for entry in found if not entry.ok)
    assert all(not entry.remedy for entry in found if entry.ok)
    return {entry.check for entry in found if not entry.ok}


def slurm(config: dict[str, str] | None = None, scav: dict[str, str] | None = None, **more: Any) -> SlurmReport:
    partitions = {"main": PARTITIONS["main"], "scav": PARTITIONS["scav"] | (scav or {})}
    return SlurmReport(**({"config": CONFIG | (config or {}), "partitions": partitions, "time": 100.0} | more))


def test_a_slurm_as_documented_is_well() -> None:
    assert wrong(judge_slurm(slurm(submission=CommandResult(True, "")), HOLDING, 101.0)) == set()
    others = {"debug": {"PriorityTier": "1", "PreemptMode": "OFF"}, "high": {"PriorityTier": "10"}}
    assert wrong(judge_slurm(slurm(partitions={**PARTITIONS, **others}), HOLDING, 101.0)) == set()


def test_each_mistake_is_named() -> None:
    cases: list[tuple[SlurmReport, str]] = [
        (slurm({"PreemptType": "preempt/none"}), "PreemptType"),
        (slurm({"KillWait": "1 sec"}), "KillWait"),
        (slurm({"CompleteWait": "20 sec"}), "CompleteWait"),
        (slurm({"ReturnToService": "2"}), "ReturnToService"),
        (slurm({"ProctrackType": "proctrack/pgid"}), "end of processes"),
        (slurm({"SchedulerType": "sched/builtin"}), "planned starts"),
        (
            slurm(partitions={**PARTITIONS, "debug": {"PriorityTier": "1", "PreemptMode": "REQUEUE"}}),
            "PreemptMode of debug",
        ),
        (slurm(scav={"PreemptMode": "OFF"}), "PreemptMode of scav"),
        (slurm(scav={"PreemptMode": "SUSPEND,GANG"}), "PreemptMode of scav"),
        (slurm(scav={"PreemptMode": "CANCEL,PRIORITY"}), "PreemptMode of scav"),
        (slurm(scav={"GraceTime": "1"}), "GraceTime"),
        (slurm(scav={"GraceTime": "300"}), "GraceTime"),
        (slurm(scav={"PriorityTier": "10"}), "PriorityTier of main"),
        (slurm(scav={"State": "DOWN"}), "partition scav"),
        (slurm(scav={"MaxTime": "00:01:00"}), "MaxTime"),
        (slurm(time=40.0), "clocks"),
        (slurm(time=None), "clocks"),
        (slurm(submission=CommandResult(False, "", "Access/permission denied")), "permission"),
        (slurm(partitions={"main": PARTITIONS["main"]}), "partition scav"),
    ]
    for report, check in cases:
        assert wrong(judge_slurm(report, HOLDING, 101.0)) == {check}


def test_what_lets_main_jobs_start_sooner_is_told_as_advice() -> None:
    quick = {"SchedulerParameters": "bf_interval=5,batch_sched_delay=0", "Epilog": "/bin/true"}
    assert start_after_preemption(quick) == "as soon as the node is empty"
    by_default = start_after_preemption({"SchedulerParameters": "(null)"})
    for words in ("batch_sched_delay is 3 s", "bf_interval is 30 s", "no Epilog"):
        assert words in by_default
    assert start_after_preemption(quick | {"SchedulerParameters": "bf_interval=5,batch_sched_delay=1,defer_batch"}) == (
        "defer: a main job that preempts waits for one more pass"
    )
    assert wrong(judge_slurm(slurm({"SchedulerParameters": "defer"}), HOLDING, 101.0)) == set()


def test_watching_needs_a_prolog_and_ssh() -> None:
    assert wrong(judge_slurm(slurm(ssh=CommandResult(False, "", "denied")), WATCHING, 101.0)) == {
        "Prolog",
        "PrologFlags",
        "ssh",
    }
    well = slurm({"Prolog": "/etc/slurm/prolog.sh", "PrologFlags": "Alloc,Contain"}, ssh=CommandResult(True, ""))
    assert wrong(judge_slurm(well, WATCHING, 101.0)) == set()


SLURM_25 = """Configuration data as of 2026-11-27T14:16:19
AccountingStorageEnforce = none
Epilog[0]               = /etc/slurm/epilog.d/10.sh
EpilogMsgTime           = 2000 usec
Prolog[0]               = /etc/slurm/prolog.d/malletrain.sh
Prolog[1]               = /etc/slurm/prolog.d/other.sh
PrologEpilogTimeout     = 65534
PrologFlags             = Alloc
SchedulerParameters     = bf_interval=2,bf_continue,batch_sched_delay=0,sched_interval=5
SchedulerType           = sched/backfill
SLURM_VERSION           = 25.05.8

Slurmctld(primary) at vm is UP
"""
"""Of 25.05.8, shortened."""


def test_single_gpus_need_a_slurm_that_gives_parts_of_nodes_and_keeps_jobs_to_them() -> None:
    gpus = SlurmSettings.model_validate({"partitions": ["main"], "units": "gpus", "hold": {"queue": "scav"}})
    parts = {
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CORE_MEMORY",
        "TaskPlugin": "task/cgroup,task/affinity",
    }
    shared = {"OverSubscribe": "NO"}
    assert wrong(judge_slurm(slurm(parts, shared), gpus, 101.0)) == set()
    assert wrong(judge_slurm(slurm(parts, {"OverSubscribe": "EXCLUSIVE"}), gpus, 101.0)) == {"parts of nodes"}
    for name, value, check in (
        ("SelectType", "select/linear", "parts of nodes"),
        ("SelectTypeParameters", "CR_CPU", "memory of parts"),
        ("TaskPlugin", "task/none", "CPUs of parts"),
        ("TaskPlugin", "(null)", "CPUs of parts"),
    ):
        assert wrong(judge_slurm(slurm(parts | {name: value}, shared), gpus, 101.0)) == {check}
    assert "--exclusive" not in size_of_a_placeholder(gpus)
    assert "--exclusive" in size_of_a_placeholder(HOLDING)


def test_slurm_24_05_numbers_prologs_and_epilogs() -> None:
    config, when = parse_config(SLURM_25)
    assert config["Prolog"] == "/etc/slurm/prolog.d/malletrain.sh,/etc/slurm/prolog.d/other.sh"
    well = slurm(config, time=when, ssh=CommandResult(True, ""))
    assert when is not None
    assert wrong(judge_slurm(well, WATCHING, when)) == set()
    assert start_after_preemption(config) == "as soon as the node is empty"
    without, _ = parse_config("".join(line for line in SLURM_25.splitlines(True) if "[" not in line))
    nothing = slurm({"PrologFlags": "Alloc"}, ssh=CommandResult(True, ""))
    missing = SlurmReport(without, nothing.partitions, when, None, nothing.ssh)
    findings = {entry.check: entry for entry in judge_slurm(missing, WATCHING, when)}
    assert not findings["Prolog"].ok
    assert findings["Prolog"].found == "none"
    assert "no Epilog" in start_after_preemption(without)


def test_accounts_that_slurm_does_not_check_keep_nobody_out() -> None:
    check = "AllowAccounts of scav"
    named = {"AllowAccounts": "training"}
    of_all = slurm({"SLURM_VERSION": "25.05.8", "AccountingStorageEnforce": "none"}, {"AllowAccounts": "ALL"})
    old, new, enforced = (
        slurm({"SLURM_VERSION": version, "AccountingStorageEnforce": enforce}, named)
        for version, enforce in (("22.05.8", "none"), ("23.02.0", "none"), ("25.05.8", "associations,limits"))
    )
    assert wrong(judge_slurm(new, HOLDING, 101.0)) == {check}
    for report in (of_all, old, enforced):
        assert wrong(judge_slurm(report, HOLDING, 101.0)) == set()


def test_a_recorded_slurm() -> None:
    folder = shared_path("schedulers/samples/slurm/multi32_queue")
    config, when = parse_config((folder / "scontrol_show_config.txt").read_text())
    partitions = parse_partitions((folder / "scontrol_show_part_oneline.txt").read_text())
    assert when == datetime(2026, 11, 21, 3, 19, 43, tzinfo=UTC).timestamp()
    assert partitions.keys() == {"main", "shared", "scav"}
    assert wrong(judge_slurm(SlurmReport(config, partitions, when), HOLDING, when)) == set()


SCAV = {
    "Priority": 1,
    "enabled": "True",
    "started": "True",
    "resources_default": {"soft_walltime": "00:01:00"},
}


def pbs(**more: Any) -> PbsReport:
    queues = {
        "main": {
            "Priority": 200,
            "enabled": "True",
            "started": "True",
            "resources_default": {"preempt_targets": "queue=scav"},
        },
        "scav": SCAV,
        "debug": {"Priority": 10, "enabled": "True", "started": "True"},
    }
    scheduler = {"preempt_queue_prio": "150", "preempt_prio": "express_queue, normal_jobs", "preempt_order": "D"}
    server = {"query_other_jobs": "True", "backfill_depth": 5}
    known: dict[str, Any] = {"queues": queues, "server": server, "scheduler": scheduler, "time": 100.0}
    return PbsReport(**(known | more))


PBS = PbsSettings.model_validate({"queues": ["main"], "hold": {"queue": "scav"}})


HOOKS = """
Hook pbs_cgroups
    type = pbs
    enabled = true
    event = execjob_begin,execjob_launch
    user = pbsadmin

Hook other
    type = site
    enabled = false
    event = queuejob
"""


def test_single_gpus_of_pbs_need_a_hook_that_names_them_and_a_scheduler_that_counts_them() -> None:
    gpus = PbsSettings.model_validate({"queues": ["main"], "units": "gpus", "hold": {"queue": "scav"}})
    nodes = {"n1": {"resources_available": {"ngpus": 4}}, "n2": {"state": "down"}}
    file = 'preemptive_sched: true ALL\nresources: "ncpus, mem, ngpus"\n'
    good = {"nodes": nodes, "scheduler_file": file, "hooks": HOOKS}
    assert wrong(judge_pbs(pbs(**good), gpus, 101.0)) == set()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"nodes": {"n1": {"resources_available": {"ncpus": 4}}}}, "GPUs of vnodes"),
        ({"nodes": {}}, "GPUs of vnodes"),
        ({"scheduler_file": file.replace(", ngpus", "")}, "ngpus"),
        ({"scheduler_file": file.replace("ngpus", "ngpus2")}, "ngpus"),
        ({"hooks": HOOKS.replace("enabled = true", "enabled = false")}, "hook of GPUs"),
        ({"hooks": HOOKS.replace("pbs_cgroups", "gpu_numbers")}, "hook of GPUs"),
    ]
    for change, name in cases:
        assert wrong(judge_pbs(pbs(**good | change), gpus, 101.0)) == {name}
    assert wrong(judge_pbs(pbs(**good | {"hooks": "", "scheduler_file": None}), gpus, 101.0)) == set(), "nobody says"
    assert wrong(
        judge_pbs(pbs(**good | {"hooks": HOOKS.replace("enabled = true", "enabled = false")}), gpus, 101.0)
    ) == {"hook of GPUs"}, "of a hook that is off, its file does not matter"
    assert wrong(judge_pbs(pbs(), PBS, 101.0)) == set(), "whole nodes need nothing of that"


@pytest.mark.parametrize(
    ("entry", "opens"),
    [
        ("c *:* rwm", True),
        ("c 195:* rwm", True),
        ("c 195:0 rw", True),
        ("a", True),
        ("a *:* rwm", True),
        (["nvidia3", "rwm"], True),
        (["nvidia3", "rwm", "*"], True),
        ("b *:* rwm", False),
        ("c *:* rm", False),
        ("c 195:255 rwm", False),
        ("c 1:* rwm", False),
        ("c", False),
        ("c 195:0", False),
        ("nonsense", False),
        (["nvidiactl", "rwm", "*"], False),
        (["nvidia0"], False),
        ([], False),
        (7, False),
    ],
)
def test_which_entries_of_pbs_cgroups_open_gpus(entry: object, opens: bool) -> None:
    assert opens_gpus(entry) is opens


def cgroups(**more: Any) -> str:
    parts: dict[str, Any] = {part: {"enabled": True, "exclude_hosts": []} for part in ("devices", "cpuset", "memory")}
    return json.dumps({"cgroup_prefix": "pbs_jobs", "cgroup": parts | more})


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (cgroups(), ""),
        (cgroups(devices={"enabled": False}), "devices off: no job is told its GPUs, and our workers do not start"),
        (
            cgroups(devices={"enabled": True, "allow": ["b *:* rwm", "c *:* rwm"]}),
            "every job may open every GPU: `allow` of devices has 'c *:* rwm'",
        ),
        (cgroups(devices={"enabled": True, "allow": ["b *:* rwm", "c 1:* rwm", ["nvidiactl", "rwm"]]}), ""),
        (cgroups(memory={}), "memory off: a job can use up the memory of the others on its node"),
        (cgroups(cpuset={"enabled": "true"}), "cpuset off: jobs on a node use each other's cores"),
        (cgroups(cpuset={"enabled": True, "exclude_hosts": ["n7", "n8"]}), "nothing on n7, n8 (exclude_hosts)"),
        ("", ""),
        ("qmgr: no permission", "its file can't be read"),
        ("[]", "its file can't be read"),
        ('{"cgroup": {"devices": true}}', "its file can't be read"),
        (cgroups(devices={"enabled": True, "exclude_hosts": 7}), "its file can't be read"),
        (cgroups(devices={"enabled": True, "allow": 7}), "its file can't be read"),
    ],
)
def test_what_the_hook_of_pbs_keeps_apart_is_told_with_what_follows(file: str, said: str) -> None:
    findings = judge_gpus({"n1": {"resources_available": {"ngpus": 4}}}, None, HOOKS, file)
    (found,) = (one for one in findings if one.check == "pbs_cgroups: what is kept apart")
    assert found.ok == (not said)
    assert said in found.found


def test_a_pbs_as_documented_is_well_and_each_mistake_is_named() -> None:
    assert wrong(judge_pbs(pbs(), PBS, 101.0)) == set()
    good = pbs()
    cases: list[tuple[PbsReport, str]] = [
        (pbs(scheduler=dict(good.scheduler) | {"preempt_order": "R"}), "preempt_order"),
        (pbs(scheduler=dict(good.scheduler) | {"preempt_prio": "normal_jobs"}), "preempt_prio"),
        (pbs(scheduler={}), "preemption"),
        (pbs(server={"query_other_jobs": "False"}), "jobs of others"),
        (pbs(server={"query_other_jobs": "True", "backfill_depth": 0}), "planned starts"),
        (
            pbs(queues=dict(good.queues) | {"scav": SCAV | {"started": "False"}}),
            "queue scav",
        ),
        (pbs(queues=dict(good.queues) | {"scav": SCAV | {"queue_type": "Route"}}), "type of scav"),
        (pbs(queues=dict(good.queues) | {"scav": SCAV | {"resources_default": {}}}), "soft_walltime of scav"),
        (pbs(queues=dict(good.queues) | {"debug": {"Priority": 150}}), "preempt_targets of debug"),
        *(
            (
                pbs(
                    queues=dict(good.queues) | {"main": {"Priority": 200, "resources_default": {"preempt_targets": to}}}
                ),
                "preempt_targets of main",
            )
            for to in ("", "NONE", "queue=scav,queue=debug", "queue=scavenge")
        ),
        (pbs(queues={"main": good.queues["main"]}), "queue scav"),
        (pbs(time=None), "clocks"),
    ]
    for report, check in cases:
        assert wrong(judge_pbs(report, PBS, 101.0)) == {check}


def test_a_recorded_pbs_can_only_requeue() -> None:
    folder = shared_path("schedulers/samples/pbs/n12_states")
    queues = parse_json((folder / "qstat_Qf.json").read_text())
    server = parse_json((folder / "qstat_Bf.json").read_text())
    scheduler = parse_scheduler((folder / "qmgr_list_sched.txt").read_text())
    report = PbsReport(queues["Queue"], server["Server"]["pbshost"], scheduler, queues["timestamp"])
    assert wrong(judge_pbs(report, PBS, queues["timestamp"])) == {
        "preempt_order",
        "preempt_targets of main",
        "soft_walltime of scav",
    }


def test_a_live_pbs_with_preempt_targets() -> None:
    queues = parse_json(shared_path("schedulers/samples/pbs-live/qstat_Qf.json").read_text())
    report = pbs(queues=queues["Queue"], time=queues["timestamp"], user="malletrain")
    section = PbsSettings.model_validate({"queues": ["main"], "hold": {"queue": "scavenge"}})
    assert wrong(judge_pbs(report, section, queues["timestamp"])) == {"soft_walltime of scavenge"}


def doctor_commands(folder: Path, **outputs: str) -> tuple[RecordedCommands, dict[str, str]]:
    folder.mkdir(exist_ok=True)
    commands = RecordedCommands(folder)
    return commands, {name: commands.add(name, output) for name, output in outputs.items()}


def test_what_each_query_of_pbs_says(tmp_path: Path) -> None:
    commands, paths = doctor_commands(
        tmp_path / "bin",
        pbsnodes=recording("pbsnodes.json"),
        qstat=recording("qstat.txt"),
        pbs_rstat=recording("pbs_rstat.txt"),
    )
    section = PbsSettings.model_validate(paths)
    source = pbs_source(section, SystemClock())
    found = {finding.check: finding for finding in examine_queries(lambda: source)}
    assert [finding.ok for finding in found.values()] == [True, True, True]
    assert found["query nodes"].found.startswith("18 nodes, 7 idle, ")
    assert found["query queue"].found == "1 planned starts"
    assert found["query reservations"].found == "2 reservations"
    asked = {name: commands.calls(name) for name in paths}
    assert asked == {"pbsnodes": ["-av -F json"], "qstat": ["-f -w"], "pbs_rstat": ["-f"]}
    assert asked == {Path(query.argv[0]).name: [" ".join(query.argv[1:])] for query in source.queries.all()}
    commands.says("qstat", "what is this?\n")
    commands.fails("pbs_rstat", 1)
    commands.says("pbsnodes", '{"pbs_version": "1", "nodes": {"n1": {"state": "free"}, "n2": {"state": "od\\u001bd"}}}')
    findings = list(examine_queries(lambda: pbs_source(section, SystemClock())))
    assert wrong(findings) == {"query nodes", "query queue", "query reservations"}
    nodes, queue, reservations = findings
    assert "2 nodes, 1 idle, 0 out of use, 1 in a state that is not known: n2" in nodes.found
    assert "\x1b" not in nodes.found
    assert "what is this?" in queue.found
    assert "qstat -f -w" in queue.remedy
    assert "no contact" in reservations.found


def test_what_each_query_of_slurm_says(tmp_path: Path) -> None:
    commands, paths = doctor_commands(
        tmp_path / "bin",
        sinfo="idle|g[01-02]\n?|g03\n",
        squeue=recording("squeue_pending.txt"),
        scontrol="No reservations in the system\n",
    )
    section = SlurmSettings.model_validate({"partitions": ["main"], **paths})
    source = slurm_source(section, SystemClock())
    nodes, queue, reservations, classes = examine_queries(lambda: source)
    assert "3 nodes, 2 idle, 0 out of use, 1 in a state that is not known: g03 '?'" in nodes.found
    assert (queue.found, reservations.found) == ("2 planned starts", "0 reservations")
    assert "expected GRES|FEATURES|CPUS|MEMORY|NODES" in classes.found
    assert wrong([nodes, queue, reservations, classes]) == {"query nodes", "query classes"}
    argv = [" ".join(query.argv[1:]) for query in source.queries.all()]
    assert sorted(argv) == sorted(commands.calls("sinfo") + commands.calls("squeue") + commands.calls("scontrol"))
    twice = SlurmSettings.model_validate({"partitions": ["a", "a"], **paths})
    assert wrong(examine_queries(lambda: slurm_source(twice, SystemClock()))) == {"queries"}


def test_a_qstat_whose_json_can_not_be_read_is_called_that(tmp_path: Path) -> None:
    _, paths = doctor_commands(
        tmp_path / "bin", pbsnodes=recording("pbsnodes.json"), qstat=recording("qstat.txt"), pbs_rstat=""
    )
    environment = {f"MALLETRAIN_SCAVENGER__PBS__{name.upper()}": path for name, path in paths.items()}
    done = CliRunner().invoke(application(), ["doctor", "--source", "pbs", "--json"], env=environment)
    assert done.exit_code == 1
    found = {entry["check"]: entry["ok"] for entry in json.loads(done.output)}
    assert (found["query queue"], found["qstat -Qf"], found["qstat -Bf"]) == (True, False, False)
    assert "clocks" not in found


def test_what_is_not_installed_is_said(tmp_path: Path) -> None:
    missing = str(tmp_path / "sinfo")
    assert not programs([missing], "scavenger.slurm.sinfo").ok
    assert not run_query([missing]).ok
    environment = {"MALLETRAIN_SCAVENGER__SLURM__SCONTROL": missing, "MALLETRAIN_SCAVENGER__SLURM__SINFO": missing}
    done = CliRunner().invoke(application(), ["doctor", "--source", "slurm", "--json"], env=environment)
    assert done.exit_code == 1
    assert missing in done.output


def test_nodes_are_given_back_at_the_end_if_jobs_are_stopped_and_kept_if_they_train_on() -> None:
    stops, goes_on = (
        AllSettings.model_validate({"job_manager": {"stop_jobs_on_exit": stop}}) for stop in (True, False)
    )
    keeps = HOLDING.hold.model_copy(update={"give_back_at_exit": False})
    assert judge_end("slurm", HOLDING.hold, stops).ok
    assert judge_end("slurm", keeps, goes_on).ok
    assert not judge_end("slurm", keeps, stops).ok
    finding = judge_end("slurm", HOLDING.hold, goes_on)
    assert "give_back_at_exit = false" in finding.remedy
    assert judge_end("slurm", WATCHING.hold, goes_on).ok, "nothing is held"


def test_nodes_and_head_see_each_other_or_all_is_loopback() -> None:
    alone = AllSettings.model_validate({})
    assert judge_reach("slurm", HOLDING.hold, alone).ok
    apart = HOLDING.hold.model_copy(update={"agents_address": "10.0.0.1:50066", "listen": "0.0.0.0"})
    finding = judge_reach("slurm", apart, alone)
    assert not finding.ok
    assert "job_manager.head_address" in finding.found
    assert "not set: addresses.monitor_for_nodes" in finding.found
    both = AllSettings.model_validate(
        {
            "addresses": {"monitor_for_nodes": "10.0.0.1:50067"},
            "job_manager": {"head_address": "10.0.0.1", "interfaces": ["hsn0"]},
        }
    )
    assert judge_reach("slurm", apart, both).ok
    assert "slurm.hold.listen" in judge_reach("slurm", HOLDING.hold, both).found


def test_loopback_is_wrong_where_nodes_are_other_machines() -> None:
    alone = AllSettings.model_validate({})
    others = other_machines({"n1": "127.0.0.1", "n2": "localhost", "n3": "192.0.2.17", "n4": "no-such-host.invalid"})
    assert [word.partition(" ")[0] for word in others] == ["n3", "n4"]
    finding = judge_reach("slurm", HOLDING.hold, alone, others)
    assert not finding.ok
    assert "n3 (192.0.2.17)" in finding.found
    assert "job_manager.head_address" in finding.remedy
    assert judge_reach("slurm", WATCHING.hold, alone, others).ok, "all workers run on this machine"
    many = {f"n{number:04d}": "192.0.2.17" for number in range(5000)} | {"m1": "192.0.2.18"}
    assert other_machines(many) == ["m1 (192.0.2.18)", "n0000 (192.0.2.17)"]
