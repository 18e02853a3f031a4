"""PBS hook (events execjob_launch, execjob_end): tells each job which GPUs of its host are its own.

For hosts without the hook pbs_cgroups of PBS, which does the same and also keeps jobs from other GPUs:

    qmgr -c "create hook gpu_numbers event='execjob_launch,execjob_end'"
    qmgr -c "import hook gpu_numbers application/x-python default gpu_numbers_hook.py"

A job that was given some of a host's GPUs (`ngpus`) gets as many of their numbers in CUDA_VISIBLE_DEVICES, which no
other job there has; a job that was given none gets an empty one. Who has which is kept in mom_priv/gpu_numbers of the
host. Nothing keeps a program from changing the variable: that takes cgroups.

It runs in the Python that PBS brings, so that it needs nothing but the standard library.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from typing import Any

_CHUNK = re.compile(r"([^:()+]+)((?::[^:()+]*)*)")
_VARIABLE = "CUDA_VISIBLE_DEVICES"


def wanted_gpus(exec_vnode: str, vnodes: set[str]) -> int:
    """How many GPUs of a host a job was given.

    Args:
        exec_vnode: Where the job runs, e.g. `(n1:ncpus=2:ngpus=1)+(n2[0]:ngpus=1+n2[1]:ngpus=1)`.
        vnodes: Names of the host's vnodes.
    """
    found = 0
    for name, resources in _CHUNK.findall(exec_vnode):
        if name in vnodes:
            found += sum(int(count) for count in re.findall(r":ngpus=(\d{1,4})(?![^:])", resources))
    return found


def assigned(held: dict[str, list[int]], job: str, wanted: int, living: set[str]) -> dict[str, list[int]]:
    """Who has which numbers, once a job has its own: the lowest ones that are free.

    Args:
        held: Who has which until now.
        job: Identifier of the job.
        wanted: How many it was given. It keeps those that it has.
        living: Identifiers of all jobs on the host.
    """
    kept = {name: numbers for name, numbers in held.items() if name == job or name in living}
    if len(kept.get(job, ())) != wanted:
        kept.pop(job, None)
        taken = {number for numbers in kept.values() for number in numbers}
        free = (number for number in range(len(taken) + wanted) if number not in taken)
        kept[job] = [number for _, number in zip(range(wanted), free)]  # noqa: B905 - as many as are wanted
    return kept


class UnknownNumbersError(Exception):
    """Which numbers the jobs of the host have is not known, so that none can be given."""


def read(path: str, others: set[str]) -> dict[str, list[int] | None]:
    """Who has which numbers; None: some that are not known, of each other job there where the file can't be read.

    Args:
        path: The file.
        others: Identifiers of the other jobs on the host.
    """
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            held = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError:
        held = None
    if not isinstance(held, dict) or not all(_is_held(numbers) for numbers in held.values()):
        return dict.fromkeys(others)
    return held


def _is_held(numbers: object) -> bool:
    return numbers is None or (isinstance(numbers, list) and all(type(number) is int for number in numbers))


def write(path: str, held: dict[str, list[int] | None]) -> None:
    """Write the file whole or not at all: a host may go down at any time."""
    new = path + ".new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(held, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)  # noqa: PTH105


def change(folder: str, job: str, wanted: int | None) -> list[int]:
    """Give a job its numbers, or, with None, take them back; returns those that it has.

    Args:
        folder: `mom_priv` of the host.
        job: Identifier of the job.
        wanted: How many GPUs it was given.

    Raises:
        UnknownNumbersError: It was given some, and the file could not be read; once all jobs have ended that were there
            then, numbers are given again.
    """
    path = os.path.join(folder, "gpu_numbers")  # noqa: PTH118
    # The lock is on a file of its own, since the other one is replaced.
    descriptor = os.open(path + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+"):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        jobs = os.path.join(folder, "jobs")  # noqa: PTH118
        living = {name[: -len(".JB")] for name in os.listdir(jobs) if name.endswith(".JB")}  # noqa: PTH208
        held = read(path, living - {job})
        unknown = sorted(name for name, numbers in held.items() if numbers is None and name in living)
        known = {name: numbers for name, numbers in held.items() if numbers is not None}
        if wanted is None:
            known.pop(job, None)
        elif not unknown or not wanted:
            known = assigned(known, job, wanted, living)
        write(path, {**known, **{name: None for name in unknown if wanted is not None or name != job}})
    if wanted and unknown:
        raise UnknownNumbersError(
            f"{path} could not be read: which GPUs {', '.join(unknown)} of this host have is not known, and no job is "
            "given any until they have ended"
        )
    return known.get(job, [])


def _run(pbs: Any) -> None:
    event = pbs.event()
    conf = pbs.pbs_conf
    folder = os.path.join(conf.get("PBS_MOM_HOME") or conf["PBS_HOME"], "mom_priv")  # noqa: PTH118
    job = event.job
    if event.type == pbs.EXECJOB_END:
        change(folder, job.id, None)
        return
    wanted = wanted_gpus(str(job.exec_vnode), {str(name) for name in event.vnode_list})
    try:
        numbers = change(folder, job.id, wanted)
    except UnknownNumbersError as error:
        job.rerun()  # it waits in the queue; without this, it is deleted
        event.reject(str(error))
        return
    event.env[_VARIABLE] = "\\,".join(map(str, numbers))  # PBS reads commas as ends of variables


try:
    import pbs as _pbs
except ImportError:  # outside PBS
    pass
else:
    _run(_pbs)
