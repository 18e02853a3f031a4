"""Fault after fault, and what each has cost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from benchmarks.faulting.acts import FAULTS
from benchmarks.faulting.notes import losses
from benchmarks.faulting.record import Trial
from benchmarks.faulting.subject import Subject
from malletrain.common.job_folder import CHECKPOINTS_FOLDER

_REST_S = 1.5
_FAULTS_PER_JOB = 20
STOP = "a stop on command, in the end"
"""What every job goes through that is still there: here, to go on is to end in time."""


class DidNotGoOnError(Exception):
    """The job is of no more use."""


def run(
    next_fault: Callable[[], str | None], save: Callable[[Trial], None], evidence: Path, rng: random.Random
) -> None:
    """Run trials until there is no next one. Jobs are shared by faults of all kinds, as in life.

    Args:
        next_fault: Names the next fault; None: enough.
        save: Called with every trial.
        evidence: Folder for the logs of jobs that did not go on.
        rng: Chooses moments and victims.
    """
    fault = next_fault()
    while fault is not None:
        with _subject(evidence) as subject:
            for _ in range(_FAULTS_PER_JOB):
                trial = _trial(subject, fault, rng)
                save(trial)
                fault = next_fault()
                if not trial.went_on:
                    raise DidNotGoOnError(trial.message)
                if fault is None:
                    break
            save(_trial(subject, STOP, rng))


@contextmanager
def _subject(evidence: Path) -> Iterator[Subject]:
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name) / "job"
        subject = Subject(folder)
        try:
            yield subject
        except DidNotGoOnError as error:
            kept = evidence / f"{time.time():.0f}-{os.getpid()}"
            shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("notes-*", "s", CHECKPOINTS_FOLDER))
            print(f"  {error}; its logs are in {kept}; going on with a new job", file=sys.stderr)
        finally:
            subject.close()


def _trial(subject: Subject, fault: str, rng: random.Random) -> Trial:
    since, restarts, message, left = time.time(), subject.restarts, "", 0
    try:
        subject.settle()
        time.sleep(rng.uniform(0.0, _REST_S))
        since, restarts = time.time(), subject.restarts
        if fault == STOP:
            left = len(subject.stop())
        else:
            FAULTS[fault](subject, rng)
            subject.wait_training()
            left = len(subject.strays())
    except (AssertionError, subprocess.TimeoutExpired, grpc.RpcError) as error:
        message = str(error)[:300] or repr(error)
    lost = losses(subject.notes.batches(), since)
    return Trial(
        fault=fault,
        went_on=not message,
        restarts=subject.restarts - restarts,
        lost_batches=round(lost.batches, 1),
        stalled_s=round(lost.pause, 3),
        processes_left=left,
        at=round(since, 3),
        load=round(os.getloadavg()[0], 1),
        message=message,
    )
