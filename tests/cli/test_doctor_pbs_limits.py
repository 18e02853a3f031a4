"""Set-ups of PBS in which no placeholder can start, as `qstat -Qf -F json` and `qmgr` of OpenPBS 23.06.06 tell them."""

from __future__ import annotations

from typing import Any

import pytest

from malletrain.cli.operate.doctor_pbs import (
    PbsReport,
    allows,
    duration_seconds,
    judge_admission,
    running_limits,
)
from malletrain.scavenger.sources.schedulers.settings import PbsHoldSettings

HOLD = PbsHoldSettings(queue="scavenge")
QUEUE = {"queue_type": "Execution", "acl_user_enable": "True", "acl_users": "malletrain,root", "enabled": "True"}
SCHEDULER = {"scheduling": "True", "sched_priv": "/var/spool/pbs/sched_priv"}
SCHEDULER_FILE = "# preemptive_sched: of comments\npreemptive_sched: true ALL\nstrict_ordering: true ALL\n"


def report(queue: dict[str, Any], nodes: int, **more: Any) -> PbsReport:
    return PbsReport(queues={"scavenge": queue}, hosts={f"n{number}": f"n{number}" for number in range(nodes)}, **more)


def wrong(**more: Any) -> set[str]:
    known = {"queue": QUEUE, "server": {"scheduling": "True"}, "scheduler": SCHEDULER, "user": "malletrain"}
    known |= {"nodes": 4, "scheduler_file": SCHEDULER_FILE} | more
    found = list(judge_admission(report(**known), HOLD))
    assert all(bool(entry.remedy) == (not entry.ok) for entry in found)
    return {entry.check for entry in found if not entry.ok}


@pytest.mark.parametrize(
    ("check", "more"),
    [
        ("permission of queue scavenge", {"user": "ann"}),
        ("permission of server", {"server": {"acl_user_enable": "True", "acl_users": "bob"}}),
        ("scheduling", {"server": {"scheduling": "False"}}),
        ("scheduling", {"scheduler": SCHEDULER | {"scheduling": "False"}}),
        ("from_route_only of scavenge", {"queue": QUEUE | {"from_route_only": "True"}}),
        ("limits of scavenge", {"queue": QUEUE | {"max_run": "[o:PBS_ALL=5],[u:PBS_GENERIC=1]"}}),
        ("limits of scavenge", {"queue": QUEUE | {"max_running": 1}, "nodes": 0}),
        ("limits of scavenge", {"server": {"max_queued": "[u:malletrain=3]"}}),
        ("resources_max.walltime of scavenge", {"queue": QUEUE | {"resources_max": {"walltime": "00:10:00"}}}),
        ("resources_max.walltime of scavenge", {"server": {"resources_max": {"walltime": 600}}}),
        ("resources_min.walltime of scavenge", {"queue": QUEUE | {"resources_min": {"walltime": "00:10:00"}}}),
        ("preemptive_sched", {"scheduler_file": "preemptive_sched: false\tALL\n"}),
        ("preemptive_sched", {"scheduler_file": "preemptive_sched: true prime\npreemptive_sched: false non_prime\n"}),
        ("preemptive_sched", {"scheduler_file": ""}),
    ],
)
def test_what_keeps_placeholders_from_starting_is_named(check: str, more: dict[str, Any]) -> None:
    assert wrong() == set()
    assert wrong(**more) == {check}


def test_what_lets_them_start_is_not() -> None:
    assert wrong(queue=QUEUE | {"max_run": "[u:PBS_GENERIC=1], [u:malletrain=4]"}) == set()
    assert wrong(queue=QUEUE | {"resources_max": {"walltime": "01:00:00"}}) == set()
    assert wrong(queue=QUEUE | {"acl_user_enable": "False", "acl_users": "bob"}) == set()
    assert wrong(queue=QUEUE | {"acl_group_enable": "True", "acl_groups": "hpc"}) == set(), "only a try can tell"


def test_a_scheduler_whose_file_can_not_be_read_is_not_called_good() -> None:
    known = report(QUEUE, 4, scheduler=SCHEDULER, user="malletrain")
    found = {entry.check: entry.found for entry in judge_admission(known, HOLD)}
    assert "can't be asked for" in found["preemptive_sched"]
    assert "/var/spool/pbs/sched_priv/sched_config" in found["preemptive_sched"]


def test_the_first_entry_that_fits_decides() -> None:
    assert allows("bob,malletrain@head.example", "malletrain")
    assert allows("+*@*.example", "malletrain")
    assert not allows("-malletrain, *", "malletrain")
    assert not allows("", "malletrain")
    assert not allows("malletrains", "malletrain")


def test_limits_for_a_user_by_name_come_first() -> None:
    limits = {"max_run": "[o:PBS_ALL=5],[u:PBS_GENERIC=1],[u:malletrain=3],[g:hpc=1]", "max_running": "?"}
    assert running_limits(limits, "malletrain") == {"max_run": 3}
    assert running_limits(limits, "ann") == {"max_run": 1}
    assert running_limits({"max_user_run": 2, "max_queued": '[u:"ann"=9]'}, "ann") == {
        "max_queued": 9,
        "max_user_run": 2,
    }


def test_durations() -> None:
    assert duration_seconds("01:30:00") == 5400
    assert duration_seconds(600) == 600
    assert duration_seconds("soon") is None
