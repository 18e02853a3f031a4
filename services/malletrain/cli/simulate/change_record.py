"""The record of `malletrain advise --apply`: every change, with what was before, so that it can be taken back.

A file of one JSON object in each line. A change is on disk before Slurm is told, so that one after which this process
dies is known, too. Whoever can write the file decides what `--undo` does: it is believed only where nobody else can.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from malletrain.cli.simulate.reordering import NiceChange, StandingChange
from malletrain.common.files import open_log, open_plain
from malletrain.common.trusted_files import reason_for_distrust
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError, PreconditionError
from malletrain.scavenger.sources.schedulers.slurm_priorities import MAX_NICE, is_updatable

MAX_BYTES = 16 * 1024 * 1024
_CHANGE, _OUTCOME, _ROUND = "change", "outcome", "round"
_MAX_SAID = 500


@dataclass
class RecordedChanges:
    """What a record says.

    Attributes:
        standing: Changes that have not been taken back, by job.
        passes: In how many rounds a job has been passed over, by job and time of submission.
    """

    standing: dict[str, StandingChange] = field(default_factory=dict)
    passes: Counter[tuple[str, str]] = field(default_factory=Counter)


def read_lines(lines: Iterable[str]) -> RecordedChanges:
    """Fold the lines of a record. Pure.

    Raises:
        InvalidInputError: a line is not one of ours. Names it.
    """
    found = RecordedChanges()
    before: dict[str, StandingChange | None] = {}
    for number, line in enumerate(lines, 1):
        try:
            _fold(found, before, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInputError(f"record, line {number}", "a line that advise --apply wrote", line) from error
    return found


def _fold(found: RecordedChanges, before: dict[str, StandingChange | None], event: dict[str, Any]) -> None:
    if event["event"] == _ROUND:
        found.passes.update((str(job), str(submitted)) for job, submitted in event["passedOver"])
        return
    job = event["job"]
    if not isinstance(job, str) or not is_updatable(job):
        raise ValueError(job)
    if event["event"] == _OUTCOME:
        if not event["took"]:
            _put(found.standing, job, before.pop(job, found.standing.get(job)))
        return
    if event["event"] != _CHANGE:
        raise ValueError(event["event"])
    earlier = found.standing.get(job)
    if earlier is not None and earlier.submitted != event["submitted"]:
        earlier = None
    before[job] = earlier
    first = earlier.nice_before if earlier else _nice(event["niceBefore"])
    after = _nice(event["niceAfter"])
    _put(found.standing, job, None if first == after else StandingChange(job, str(event["submitted"]), first, after))


def _nice(value: object) -> int:
    if not isinstance(value, int) or abs(value) > MAX_NICE:
        raise ValueError(value)
    return value


def _put(standing: dict[str, StandingChange], job: str, change: StandingChange | None) -> None:
    if change is None:
        standing.pop(job, None)
    else:
        standing[job] = change


class ChangeRecord:
    """An open record that only this process writes."""

    def __init__(self, file: BinaryIO, path: Path, clock: Clock) -> None:
        self._file = file
        self._path = path
        self._clock = clock
        self._by = _account()

    def read(self) -> RecordedChanges:
        """What it says so far.

        Raises:
            InvalidInputError: it is not a record.
            PreconditionError: it is too long.
        """
        with open_plain(self._path) as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise PreconditionError(
                f"{self._path} is longer than {MAX_BYTES} bytes: take changes back with --undo, and move it away"
            )
        return read_lines(content.decode(errors="replace").splitlines())

    def round(self, passed_over: Iterable[tuple[str, str]]) -> None:
        """Note which jobs a round passes over."""
        self._write({"event": _ROUND, "passedOver": [list(key) for key in passed_over]})

    def change(self, change: NiceChange, command: list[str]) -> None:
        """Note a change that is about to be made."""
        said = {"kind": change.kind.value, "priorityBefore": change.priority_before, "command": command}
        values = {"niceBefore": change.nice_before, "niceAfter": change.nice_after}
        self._write({"event": _CHANGE, "job": change.job, "submitted": change.submitted, **values, **said})

    def outcome(self, job: str, *, took: bool, values: Mapping[str, int | None], said: str = "") -> None:
        """Note what became of the last change of a job.

        Args:
            job: The job.
            took: Whether its nice value is, or may be, as wanted.
            values: What Slurm says of it now.
            said: What Slurm said against it.
        """
        self._write({"event": _OUTCOME, "job": job, "took": took, **values, "said": said[:_MAX_SAID]})

    def _write(self, event: dict[str, Any]) -> None:
        """Bring a line to disk before anything else is done."""
        line = {"at": self._clock.time(), "by": self._by, **event}
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


@contextmanager
def open_record(path: Path, clock: Clock) -> Iterator[ChangeRecord]:
    """Open a record, and make it if there is none.

    Raises:
        InvalidInputError: it can't be written, or somebody else could have written it.
        PreconditionError: another process has it open.
    """
    try:
        file = open_log(path)
    except OSError as error:
        raise InvalidInputError("--record", f"a file that can be written ({error})", str(path)) from error
    with file:
        if reason := reason_for_distrust(path):
            raise InvalidInputError("--record", f"a file that only you can write: {reason}", str(path))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PreconditionError(f"another advise --apply has {path} open") from error
        yield ChangeRecord(file, path, clock)


def _account() -> str:
    """Who makes the changes: the account, and whose session it is where sudo says so."""
    user_id = os.getuid()
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:
        name = str(user_id)
    asked = os.environ.get("SUDO_UID", "")
    return f"{name} (sudo, user id {asked})" if asked.isdigit() and len(asked) <= 10 else name
