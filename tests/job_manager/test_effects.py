from __future__ import annotations

import pytest

from malletrain.job_manager.effects import (
    Effect,
    ReleaseHosts,
    SetHosts,
    StartSupervisor,
    StopSupervisor,
    may_precede_record,
)
from tests.job_manager.harness import running


@pytest.mark.parametrize(
    ("effect", "may"),
    [
        (ReleaseHosts("j000001", 1, ("a",), 1.0), True),
        (StopSupervisor("j000001", 1, 1.0), True),
        (SetHosts("j000001", 1, 2, ("a",)), True),
        (SetHosts("j000001", 1, 2, ("a", "b")), True),
        (SetHosts("j000001", 1, 2, ("a", "c")), False),
        (SetHosts("j000001", 2, 2, ("a",)), False),
        (SetHosts("j000002", 1, 2, ("a",)), False),
        (StartSupervisor("j000001", 1), False),
    ],
)
def test_only_what_takes_nodes_from_a_job_begins_before_it_is_recorded(effect: Effect, may: bool) -> None:
    assert may_precede_record(effect, running("a b").state.jobs) is may
