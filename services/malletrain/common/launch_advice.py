"""How a program is run that names no launcher backend, and what to say of one that does not fit its backend. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from malletrain.common.script_kind import Script, ScriptKind

_K = ScriptKind
_BACKENDS: Mapping[ScriptKind, str] = {
    _K.ANY_BACKEND: "",
    _K.UNKNOWN: "",
    _K.ELASTIC_HOROVOD: "horovod",
    _K.HOROVOD: "horovod",
    _K.TORCHRUN: "torchrun",
    _K.OWN_RANKS: "command",
    _K.SINGLE: "command",
    _K.LAUNCHER: "command",
    _K.WRAPPER: "command",
}
_ONE_NODE = frozenset({_K.SINGLE, _K.OWN_RANKS})
"""They can't use another node, whatever they are told."""
_BEGINS_AGAIN = (
    "is started again at each change of scale: it has to load the checkpoint that it has saved itself, and trains again"
    " what came after that"
)
_WHAT = {
    _K.SINGLE: "is a single process",
    _K.OWN_RANKS: "starts its ranks itself",
    _K.LAUNCHER: "starts its ranks by a launcher",
}


@dataclass(frozen=True)
class LaunchAdvice:
    """How a program is run.

    Attributes:
        backend: Launcher backend; empty: the operator's default.
        one_node: Whether it can use no more than one node.
        usually_one_node: Whether it has one node unless more are asked for.
        note: What its submitter should know, in one sentence; empty: nothing.
    """

    backend: str
    one_node: bool = False
    usually_one_node: bool = False
    note: str = ""


def advise(script: Script, backend: str = "", *, several: bool = True, scale_named: bool = False) -> LaunchAdvice:
    """How a program is run.

    Args:
        script: What is known of it.
        backend: The backend that its submitter has named; empty: none.
        several: Whether it may get several workers, as far as its submitter has said.
        scale_named: Whether its submitter has said that it may have several nodes.
    """
    if backend:
        return LaunchAdvice(
            backend, usually_one_node=backend == "command", note=_misfit(script, backend, several=several)
        )
    chosen = _BACKENDS[script.kind]
    one = script.kind in _ONE_NODE
    # Copies of a program that don't look for each other would train several models, and save over each other.
    usually_one = chosen == "command" or script.kind is _K.UNKNOWN
    return LaunchAdvice(chosen, one, usually_one, _choice(script, several=several, scale_named=scale_named))


def _choice(script: Script, *, several: bool, scale_named: bool) -> str:
    """What to say of the backend that was chosen for a program; empty where one worker is all that was asked for."""
    if not several and script.kind is not _K.UNKNOWN:
        return ""
    name = script.name
    match script.kind:
        case _K.SINGLE:
            return (
                f"{name} is a single process, so it runs on one node (--backend command); to use more, it needs "
                "torch.distributed, Horovod or malletrain.client.elastic"
            )
        case _K.OWN_RANKS:
            return (
                f"{name} starts its ranks itself, so it runs on one node (--backend command); to use more, have it "
                "take rank and world size from the environment, and say --backend torchrun"
            )
        case _K.LAUNCHER if scale_named:
            return (
                f"{script.launcher} starts the ranks itself, so it is run once, on the first of its nodes (--backend "
                "command): have it read $MALLETRAIN_HOSTFILE, or submit the script without it"
            )
        case _K.LAUNCHER:
            return (
                f"{script.launcher} starts the ranks itself, so it runs on one node (--backend command); to use more, "
                f"submit the script without it, or say --max and have it read $MALLETRAIN_HOSTFILE"
            )
        case _K.WRAPPER if scale_named:
            return (
                f"{name} is run once, on the first of its nodes (--backend command), which are in "
                "$MALLETRAIN_HOSTFILE; name a backend if each node is to run it"
            )
        case _K.WRAPPER:
            return (
                f"{name} is run once, on one node (--backend command); name a backend if each node is to run it, or "
                "say --max if it uses the nodes in $MALLETRAIN_HOSTFILE"
            )
        case _K.HOROVOD:
            return _plain_horovod(script)
        case _K.TORCHRUN if not script.helped:
            return f"{name} runs as by torchrun (--backend torchrun): it {_BEGINS_AGAIN}"
        case _K.UNKNOWN if scale_named:
            return (
                f"how {name} starts its ranks can't be told, so the operator's default backend starts it on each node; "
                "name a --backend"
            )
        case _K.UNKNOWN:
            return (
                f"how {name} starts its ranks can't be told, so it runs on one node; name a --backend, and say --max, "
                "to use more"
            )
        case _:
            return ""


def _plain_horovod(script: Script) -> str:
    return f"{script.name} uses Horovod without hvd.elastic.run: it {_BEGINS_AGAIN}"


def _misfit(script: Script, backend: str, *, several: bool) -> str:
    """What to say of a program under a backend that was named; empty where they fit."""
    if not several:
        return ""
    name = script.name
    match backend, script.kind:
        case "horovod", _K.HOROVOD:
            return _plain_horovod(script)
        case "horovod", _K.TORCHRUN:
            return f"{name} expects RANK and WORLD_SIZE, which Horovod does not set: --backend torchrun"
        case "torchrun", _K.HOROVOD | _K.ELASTIC_HOROVOD:
            return f"{name} uses Horovod, whose ranks torchrun does not set: --backend horovod"
        case "horovod" | "torchrun", _K.SINGLE | _K.OWN_RANKS | _K.LAUNCHER:
            return f"{name} {_WHAT[script.kind]}: each worker runs a whole copy of it; --backend command runs one"
        case "command", _K.SINGLE | _K.OWN_RANKS:
            return f"{name} {_WHAT[script.kind]}, and leaves all nodes but its first idle: --max 1"
        case "command", _K.TORCHRUN | _K.HOROVOD | _K.ELASTIC_HOROVOD:
            return f"{name} is started once, on its first node: --backend {_BACKENDS[script.kind]} starts all ranks"
        case _:
            return ""
