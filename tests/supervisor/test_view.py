"""What a supervisor says of its job."""

from __future__ import annotations

from typing import ClassVar

from malletrain.supervisor.loop.view import UNDECIDED, Seen, view
from malletrain.v1 import supervisor_pb2


class OfTwoHosts:
    """A group that has taken over command 4."""

    sequence = 4
    commanded: ClassVar = {"a": 1}
    winding_down = False
    confirmed_sequence = 3
    fulfilled = False
    confirmed_hosts = ()


def test_a_command_that_a_stop_has_overtaken_counts_as_taken() -> None:
    """JobManager knows by it that a supervisor without workers speaks of the newest stop."""
    kept = Seen(OfTwoHosts(), (), (), {}, kept=True, overtaken=5)
    state = view("j1", kept, False, UNDECIDED, "")
    assert (state.phase, state.commanded_sequence) == (supervisor_pb2.SUPERVISOR_PHASE_KEPT, 5)
    earlier = Seen(OfTwoHosts(), (), (), {}, overtaken=2)
    assert view("j1", earlier, False, UNDECIDED, "").commanded_sequence == 4
