"""What the end of a worker means for its job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import ExitMeaning, WorkerExit, WorkerRole

WELL = WorkerExit(Slot("n1", 0), 42, 0, started=True, going=True, killed=False, hung=False)
ENDS = {
    "0": WELL,
    "0, without a line of the job's own code": replace(WELL, started=False),
    "1": replace(WELL, code=1),
    "killed by another": replace(WELL, code=-9),
    "killed by the supervisor": replace(WELL, code=-9, killed=True),
    "0, while the supervisor killed it": replace(WELL, killed=True),
    "hung": replace(WELL, code=-9, killed=True, hung=True),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("role", WorkerRole)
def test_what_was_asked_to_leave_has_left_however_it_ends(end: str, role: WorkerRole) -> None:
    assert ENDS[end].meaning(role, asked=True) is ExitMeaning.LEFT


@pytest.mark.parametrize(
    ("end", "rank_zero", "member", "new_worker"),
    [
        ("0", ExitMeaning.DONE, ExitMeaning.EARLY, ExitMeaning.FAILED),
        ("0, without a line of the job's own code", ExitMeaning.DONE, ExitMeaning.EARLY, ExitMeaning.FAILED),
        ("1", ExitMeaning.FAILED, ExitMeaning.FAILED, ExitMeaning.FAILED),
        ("killed by another", ExitMeaning.FAILED, ExitMeaning.FAILED, ExitMeaning.FAILED),
        ("killed by the supervisor", ExitMeaning.LEFT, ExitMeaning.LEFT, ExitMeaning.LEFT),
        ("0, while the supervisor killed it", ExitMeaning.LEFT, ExitMeaning.LEFT, ExitMeaning.LEFT),
        ("hung", ExitMeaning.FAILED, ExitMeaning.FAILED, ExitMeaning.FAILED),
    ],
)
def test_what_nobody_had_asked_to_leave(
    end: str, rank_zero: ExitMeaning, member: ExitMeaning, new_worker: ExitMeaning
) -> None:
    found = [
        ENDS[end].meaning(role, asked=False)
        for role in (WorkerRole.RANK_ZERO, WorkerRole.MEMBER, WorkerRole.NEW_WORKER)
    ]
    assert found == [rank_zero, member, new_worker]
