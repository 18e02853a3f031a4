"""What the Scavenger tells of nodes, as JobManager's machine takes it."""

from __future__ import annotations

from malletrain.job_manager.machine.stimuli import IdleSetSeen, NodesChanged
from malletrain.job_manager.wire import nodes_stimulus
from malletrain.runtime.messages import timestamp
from malletrain.v1 import resources_pb2, scavenger_pb2

NOW = 1_785_000_000.0
JOINED = (resources_pb2.Node(name="n1", gpus=4), resources_pb2.Node(name="n2"))


def test_a_snapshot_is_the_whole_set() -> None:
    message = scavenger_pb2.WatchNodesResponse(snapshot=True, joined=JOINED, event_time=timestamp(NOW - 5))
    assert nodes_stimulus(message, NOW) == IdleSetSeen(frozenset({"n1", "n2"}), {"n1": 4})


def test_a_change_has_its_own_time_or_else_the_present() -> None:
    message = scavenger_pb2.WatchNodesResponse(joined=JOINED, left=["n3"], event_time=timestamp(NOW - 5))
    joined, left, gpus = frozenset({"n1", "n2"}), frozenset({"n3"}), {"n1": 4}
    assert nodes_stimulus(message, NOW) == NodesChanged(joined, left, NOW - 5, gpus)
    message.ClearField("event_time")
    assert nodes_stimulus(message, NOW) == NodesChanged(joined, left, NOW, gpus)
