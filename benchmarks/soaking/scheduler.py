"""Two stand-in schedulers: Slurm, whose nodes follow a trace, and PBS with a few nodes on which agents run."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.soaking.fault_plan import FaultKind
from benchmarks.soaking.pbs_commands import jobs
from benchmarks.soaking.workload import IdleNodes, sinfo_text

PARTITION = "summit"
_OK, _GARBAGE, _SILENT, _ERROR = "ok", "garbage", "silent", "error"
MOODS = {
    FaultKind.SCHEDULER_GARBAGE: _GARBAGE,
    FaultKind.SCHEDULER_SILENT: _SILENT,
    FaultKind.SCHEDULER_REFUSES: _ERROR,
}
_SCRIPT = """#!/bin/sh
read -r mood < {folder}/mood
case $mood in
garbage) exec cat {folder}/garbage;;
silent) exec sleep 600;;
error) echo "{name}: error: unable to contact the controller" >&2; exit 1;;
esac
{answer}
"""
_SINFO = 'case "$*" in *%T*) exec cat {folder}/states;; *) exec cat {folder}/classes;; esac'


def _replace(path: Path, content: str | bytes) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    draft.replace(path)


class StandInSchedulers:
    """The commands of both, in a folder for PATH.

    Attributes:
        folder: Where the commands are.
        agent_nodes: The nodes of PBS.
    """

    def __init__(self, folder: Path, idle: IdleNodes, agent_nodes: Sequence[str], garbage_seed: int) -> None:
        """Write the commands, with the nodes of second 0."""
        self.folder = folder
        self.agent_nodes = tuple(agent_nodes)
        self._idle = idle
        self._garbage = random.Random(garbage_seed)
        self._moods: list[str] = []
        self._taken: set[str] = set()
        (folder / "jobs").mkdir(parents=True)
        _replace(folder / "mood", f"{_OK}\n")
        _replace(folder / "classes", f"(null)|(null)|1|1|{','.join(idle.names)}\n")
        _replace(folder / "nodes", "\n".join(agent_nodes))
        self.follow(0.0)
        self._write_commands()

    def _write_commands(self) -> None:
        program = Path(__file__).with_name("pbs_commands.py")
        answers = {"sinfo": _SINFO.format(folder=self.folder), "squeue": "", "scontrol": "", "pbs_rstat": ""}
        for name in ("pbsnodes", "qstat", "qsub", "qdel"):
            answers[name] = f'exec {sys.executable} -S -E {program} {name} {self.folder} "$@"'
        for name, answer in answers.items():
            path = self.folder / name
            path.write_text(_SCRIPT.format(folder=self.folder, name=name, answer=answer))
            path.chmod(0o755)

    def follow(self, seconds: float) -> None:
        """Slurm's nodes are as the trace says at this second of the run."""
        _replace(self.folder / "states", sinfo_text(self._idle.names, self._idle.at(seconds)))

    def drain(self) -> None:
        """The trace is over: some nodes are idle, and no agent's node is taken."""
        _replace(self.folder / "states", sinfo_text(self._idle.names, self._idle.while_draining()))
        self._taken.clear()
        _replace(self.folder / "taken", "")

    def take_or_give_back(self, name: str) -> None:
        """A main job of PBS takes a node, whose agent is asked to leave, or ends."""
        self._taken ^= {name}
        _replace(self.folder / "taken", "\n".join(sorted(self._taken)))
        if name in self._taken:
            for job in jobs(self.folder).values():
                if job["node"] == name:
                    os.kill(job["pid"], signal.SIGTERM)

    def begin(self, kind: FaultKind) -> None:
        """Answer as this fault says."""
        if kind is FaultKind.SCHEDULER_GARBAGE:
            _replace(self.folder / "garbage", self._new_garbage())
        self._moods.append(MOODS[kind])
        self._tell()

    def end(self, kind: FaultKind) -> None:
        """Answer as before."""
        self._moods.remove(MOODS[kind])
        self._tell()

    def _tell(self) -> None:
        _replace(self.folder / "mood", f"{self._moods[-1] if self._moods else _OK}\n")

    def _new_garbage(self) -> bytes:
        """Bytes, a page of HTML, or an answer that is cut short."""
        whole = (self.folder / "states").read_bytes()
        choices = (self._garbage.randbytes(3000), b"<html><body>502</body></html>\n", whole[: len(whole) // 2] + b"|")
        return self._garbage.choice(choices)

    def agents(self) -> dict[str, int]:
        """Process of the agent on each node of PBS that has one."""
        return {job["node"]: job["pid"] for job in jobs(self.folder).values()}

    def end_agents(self) -> None:
        """Kill all that were started here."""
        for pid in self.agents().values():
            os.kill(pid, signal.SIGKILL)


def play(
    schedulers: StandInSchedulers,
    moments: Sequence[float],
    taken: Sequence[tuple[float, str]],
    now: Callable[[], float],
    ending: threading.Event,
) -> None:
    """Change nodes when they are due, until `ending`. Run in a thread of its own."""
    changes = sorted([(moment, "") for moment in moments] + list(taken))
    for at, name in changes:
        if ending.wait(max(0.0, at - now())):
            return
        if name:
            schedulers.take_or_give_back(name)
        else:
            schedulers.follow(at)
