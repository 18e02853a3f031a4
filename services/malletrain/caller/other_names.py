"""Words of other systems (sbatch, qsub, submitit, Ray, SkyPilot), and what stands for them here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

_SCALE = ("min", "max")
_OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("N", "nodes", "nnodes", "num-nodes"), _SCALE),
    "min-nodes": ("min",),
    "max-nodes": ("max",),
    **dict.fromkeys(("n", "ntasks-per-node", "tasks-per-node", "nproc-per-node"), ("slots",)),
    **dict.fromkeys(("J", "job-name"), ("name",)),
    **dict.fromkeys(("p", "partition", "q", "queue"), ("pool",)),
    **dict.fromkeys(("G", "gres", "gpus-per-node", "num-gpus", "entrypoint-num-gpus", "accelerators"), ("gpus",)),
    **dict.fromkeys(("c", "cpus", "cpus-per-task", "num-cpus"), ("cores",)),
    **dict.fromkeys(("mem", "mem-gb"), ("memory",)),
    "C": ("constraint",),
    "x": ("exclude",),
    **dict.fromkeys(("D", "chdir", "cwd", "working-dir", "working-directory"), ("workdir",)),
    **dict.fromkeys(("d", "dependency", "depends-on"), ("after", "after-ok")),
    **dict.fromkeys(("A", "account"), ("project",)),
    **dict.fromkeys(("export", "envs", "environment"), ("env",)),
    "a": ("array",),
    "requeue": ("max-restarts",),
    **dict.fromkeys(("nice", "priority"), ("weight",)),
}
"""Options of ours, without dashes, by those of others."""
_ABSENT = {
    **dict.fromkeys(("t", "time", "timeout", "time-limit"), "jobs have no time limit; the script ends them"),
    **dict.fromkeys(("o", "e", "output", "error"), "`malletrain logs` shows what jobs write"),
}
"""What to say of options of others that nothing stands for."""
_VERBS = {
    **dict.fromkeys(("sbatch", "qsub", "run", "launch", "exec"), "submit"),
    **dict.fromkeys(("squeue", "qstat", "ps", "ls", "list", "queue", "status", "stat"), "jobs"),
    **dict.fromkeys(("scancel", "qdel", "kill", "stop", "rm", "delete"), "cancel"),
    **dict.fromkeys(("sinfo", "pbsnodes", "node"), "nodes"),
    **dict.fromkeys(("scontrol", "show", "describe"), "job"),
    **dict.fromkeys(("log", "tail", "output"), "logs"),
    **dict.fromkeys(("sacct", "sreport"), "usage"),
    **dict.fromkeys(("start", "server"), "up"),
    **dict.fromkeys(("sweep", "hpo"), "search"),
}
_ABSENT_VERBS = {
    "wait": "`malletrain submit --wait` waits for the end of what it submits; `malletrain logs -f JOB` for one job",
}
"""What to say of verbs that nothing stands for."""
_STATES = {
    **dict.fromkeys(("done", "ended", "finished", "success", "succeeded", "cd"), ("completed",)),
    **dict.fromkeys(("pending", "pd"), ("queued", "waiting")),
    **dict.fromkeys(("active", "r"), ("running",)),
    **dict.fromkeys(("error", "failure", "f"), ("failed",)),
    **dict.fromkeys(("canceled", "killed", "ca"), ("cancelled",)),
}


def own_options(name: str) -> tuple[str, ...]:
    """The options of `malletrain submit`, without dashes, that stand for one of another system; empty: none."""
    return _OPTIONS.get(name) or _OPTIONS.get(name.replace("_", "-"), ())


def why_absent(name: str) -> str:
    """Why nothing stands for an option of another system; empty: something does, or it is not known."""
    return _ABSENT.get(name) or _ABSENT.get(name.replace("_", "-"), "")


def own_verb(word: str, known: Sequence[str]) -> str:
    """The verb that is meant by a word which is none; empty: none is like it."""
    return _VERBS.get(word) or next(iter(get_close_matches(word, known, 1)), "")


def why_no_verb(word: str) -> str:
    """What to do in place of a verb that nothing stands for; empty: something does, or it is not known."""
    return _ABSENT_VERBS.get(word, "")


def states_in_words(name: str, known: Sequence[str]) -> str:
    """What a state may be, for the error about a word that is none; what is meant comes last."""
    expected = f"one of {', '.join(known)}"
    meant = _STATES.get(name.lower()) or tuple(get_close_matches(name.lower(), known, 1))
    return f"{expected}, probably {' or '.join(meant)}" if meant else expected


def identifier_like(text: str) -> str:
    """The identifier of a job that a text is nearly: `7`, `j7` and `J000007` mean j000007; empty: it is none."""
    digits = text[1:] if text[:1] in ("j", "J") else text
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 12
    return f"j{int(digits):06d}" if is_number else ""
