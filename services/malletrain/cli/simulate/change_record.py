"""The record of `malletrain advise --apply`: every change, with what was before, so that it can be taken back.

A file of one JSON object in each line. A change is on disk before Slurm is told, so that one after which this process
dies is known, too. Whoever can write the file decides what `--undo` does: it is believed only where nobody else can.

A line that does not end was being written when its process was killed or the disk was full: nothing was done by it,
and it is cut off. A long record is replaced by a short one of what still counts; the last long one is kept beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from malletrain.cli.simulate.reordering import NiceChange, StandingChange
from malletrain.common.files import open_log, open_plain, sync_directory, write_atomically
from malletrain.common.trusted_files import reason_for_distrust
from malletrain.common.untrusted_json import JsonBounds, parse_object
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError, PreconditionError
from malletrain.scavenger.sources.schedulers.slurm_priorities import MAX_NICE, JobPriority, is_updatable

LONG_BYTES = 1024 * 1024
"""A record of this size is made shorter, unless it had more than half of it after the last time."""
MAX_LINE = 16 * 1024 * 1024
_MAX_PASSED = 100_000
_CHANGE, _OUTCOME, _ROUND, _AGAIN, _PASSES = "change", "outcome", "round", "again", "passes"
_MAX_SAID = 500
_PIECE = 64 * 1024
_BEGINNING = b'{"at":'
"""How each line of a record begins."""
_LINE_BOUNDS = JsonBounds(max_bytes=1 << 24, max_entries=1 << 20)
"""A line of pass counts names all jobs that wait."""


@dataclass
class RecordedChanges:
    """What a record says.

    Attributes:
        standing: Changes that have not been taken back, by job.
        passes: In how many rounds a job has been passed over, by job and time of submission.
        last_passed: Those of the last round.
    """

    standing: dict[str, StandingChange] = field(default_factory=dict)
    passes: Counter[tuple[str, str]] = field(default_factory=Counter)
    last_passed: tuple[tuple[str, str], ...] = ()


def read_lines(lines: Iterable[str]) -> RecordedChanges:
    """Fold the lines of a record. Pure.

    Raises:
        InvalidInputError: a line is not one of ours. Names it.
    """
    changes = RecordedChanges()
    before: dict[str, StandingChange | None] = {}
    for number, line in enumerate(lines, 1):
        try:
            _fold(changes, before, parse_object(line.encode(), _LINE_BOUNDS))
        except (ValueError, KeyError, TypeError) as error:
            excerpt = line[:_MAX_SAID]
            raise InvalidInputError(f"record, line {number}", "a line that advise --apply wrote", excerpt) from error
    return changes


def _fold(changes: RecordedChanges, before: dict[str, StandingChange | None], event: dict[str, Any]) -> None:
    if event["event"] in (_ROUND, _AGAIN):
        if event["event"] == _ROUND:
            changes.last_passed = tuple((str(job), str(submitted)) for job, submitted in event["passedOver"])
        changes.passes.update(changes.last_passed)
        return
    if event["event"] == _PASSES:
        for job, submitted, count in event["counts"]:
            changes.passes[str(job), str(submitted)] += int(count)
        return
    job = event["job"]
    if not isinstance(job, str) or not is_updatable(job):
        raise ValueError(job)
    if event["event"] == _OUTCOME:
        if not event["took"]:
            _set_standing(changes.standing, job, before.pop(job, changes.standing.get(job)))
        return
    if event["event"] != _CHANGE:
        raise ValueError(event["event"])
    earlier = changes.standing.get(job)
    if earlier is not None and earlier.submitted != event["submitted"]:
        earlier = None
    before[job] = earlier
    first = earlier.nice_before if earlier else _nice(event["niceBefore"])
    after = _nice(event["niceAfter"])
    _set_standing(
        changes.standing, job, None if first == after else StandingChange(job, str(event["submitted"]), first, after)
    )


def _nice(value: object) -> int:
    if not isinstance(value, int) or abs(value) > MAX_NICE:
        raise ValueError(value)
    return value


def _set_standing(standing: dict[str, StandingChange], job: str, change: StandingChange | None) -> None:
    if change is None:
        standing.pop(job, None)
    else:
        standing[job] = change


def still_counting(changes: RecordedChanges, now: Mapping[str, JobPriority]) -> list[dict[str, Any]]:
    """The events that say as much as a record of what still counts. Pure.

    Args:
        changes: What the record says.
        now: All jobs that Slurm knows, in any state. A number that was given again is another job.
    """
    known = {(job, seen.submitted) for job, seen in now.items()}
    events: list[dict[str, Any]] = [
        {
            "event": _CHANGE,
            "job": change.job,
            "submitted": change.submitted,
            "niceBefore": change.nice_before,
            "niceAfter": change.nice_after,
        }
        for change in changes.standing.values()
        if (change.job, change.submitted) in known
    ]
    waiting = Counter({key: count for key, count in changes.passes.items() if key in known})
    if waiting:
        events.append({"event": _PASSES, "counts": [[*key, count] for key, count in waiting.most_common(_MAX_PASSED)]})
    return events


class ChangeRecord:
    """An open record that only this process writes."""

    def __init__(self, file: BinaryIO, path: Path, clock: Clock) -> None:
        self._file = file
        self._path = path
        self._clock = clock
        self._by = _account()
        self._last_passed: tuple[tuple[str, str], ...] = ()
        self._long = LONG_BYTES

    @property
    def is_long(self) -> bool:
        """Whether it is to be made shorter."""
        return os.fstat(self._file.fileno()).st_size > self._long

    def read(self) -> RecordedChanges:
        """What it says so far, however long it is.

        Raises:
            InvalidInputError: it is not a record.
        """
        with open_plain(self._path) as file:
            return read_lines(_lines_of(file))

    def drop_ended(self, now: Mapping[str, JobPriority]) -> None:
        """Keep what still counts. What was there is kept under another name, until the next time.

        Args:
            now: All jobs that Slurm knows, in any state.

        Raises:
            InvalidInputError: it is not a record.
            OSError: it can't be written; it is as it was.
        """
        lines = [self._line(event) for event in still_counting(self.read(), now)]
        self._replace(b"".join(lines).decode())
        self._last_passed = ()
        self._long = max(LONG_BYTES, 2 * os.fstat(self._file.fileno()).st_size)

    def _replace(self, text: str) -> None:
        """Take a new file as the record. It is locked before it has the name: nobody else can write it in between."""
        new, old = (self._path.with_name(self._path.name + ending) for ending in (".new", ".old"))
        write_atomically(new, text, mode=0o600, exact=True)
        file = open_log(new)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            old.unlink(missing_ok=True)
            os.link(self._path, old)
            new.replace(self._path)
        except BaseException:
            file.close()
            raise
        self._file.close()
        self._file = file
        sync_directory(self._path.parent)

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()

    def round(self, passed_over: Collection[tuple[str, str]]) -> None:
        """Note which jobs a round passes over. One that passes over the same ones as the last is a short line."""
        present = tuple(passed_over)
        if present == self._last_passed:
            self._write({"event": _AGAIN})
        else:
            self._write({"event": _ROUND, "passedOver": [list(key) for key in present]})
        self._last_passed = present

    def change(self, change: NiceChange, command: list[str]) -> None:
        """Note a change that is about to be made."""
        fixed = {"kind": change.kind.value, "priorityBefore": change.priority_before, "command": command}
        values = {"niceBefore": change.nice_before, "niceAfter": change.nice_after}
        self._write({"event": _CHANGE, "job": change.job, "submitted": change.submitted, **values, **fixed})

    def outcome(self, job: str, *, took: bool, values: Mapping[str, int | None], refusal: str = "") -> None:
        """Note what became of the last change of a job.

        Args:
            took: Whether its nice value is, or may be, as wanted.
            values: What Slurm says of it now.
            refusal: What Slurm said against it.
        """
        self._write({"event": _OUTCOME, "job": job, "took": took, **values, "said": refusal[:_MAX_SAID]})

    def _line(self, event: dict[str, Any]) -> bytes:
        return json.dumps({"at": self._clock.time(), "by": self._by, **event}, separators=(",", ":")).encode() + b"\n"

    def _write(self, event: dict[str, Any]) -> None:
        """Bring a line to disk before anything else is done. Where that fails, nothing of it remains.

        Raises:
            OSError: it can't be written.
        """
        line = memoryview(self._line(event))
        descriptor = self._file.fileno()
        before = os.fstat(descriptor).st_size
        try:
            while line:  # not by the file object, which would keep a rest and write it later
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        except BaseException:
            os.ftruncate(descriptor, before)
            raise


@contextmanager
def open_record(path: Path, clock: Clock) -> Iterator[ChangeRecord]:
    """Open a record, and make it if there is none.

    Raises:
        InvalidInputError: it can't be written, or somebody else could have written it.
        PreconditionError: another process has it open.
        OSError: it can't be read, or a line that does not end can't be cut off.
    """
    try:
        file = open_log(path)
    except OSError as error:
        raise InvalidInputError("--record", f"a file that can be written ({error})", str(path)) from error
    with ExitStack() as opened:
        opened.enter_context(file)
        if reason := reason_for_distrust(path):
            raise InvalidInputError("--record", f"a file that only you can write: {reason}", str(path))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PreconditionError(f"another advise --apply has {path} open") from error
        if not os.path.samestat(os.fstat(file.fileno()), path.lstat()):  # it has just been replaced by a shorter one
            raise PreconditionError(f"another advise --apply has {path} open")
        _cut_torn_line(file, path)
        record = ChangeRecord(file, path, clock)
        opened.callback(record.close)
        yield record


def _lines_of(file: BinaryIO) -> Iterator[str]:
    """One line after the other.

    Raises:
        InvalidInputError: one is too long.
    """
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise InvalidInputError("record", f"lines of at most {MAX_LINE} bytes", repr(line[:_MAX_SAID]))
        yield line.decode(errors="replace")


def _cut_torn_line(file: BinaryIO, path: Path) -> None:
    """Cut off a last line that does not end, if it is one of ours.

    Raises:
        InvalidInputError: it is not; the file may be something else.
        OSError: the file can't be read or cut.
    """
    with open_plain(path) as content:
        size = content.seek(0, os.SEEK_END)
        end, torn = size, b""
        while end and b"\n" not in torn and len(torn) <= MAX_LINE:
            start = max(0, end - _PIECE)
            content.seek(start)
            torn = content.read(end - start) + torn
            end = start
    torn = torn.rpartition(b"\n")[2]
    written = torn.rstrip(b"\0")  # a power failure may leave zeros for what was not written
    if len(torn) > MAX_LINE or not (written.startswith(_BEGINNING) or _BEGINNING.startswith(written)):
        raise InvalidInputError("--record", "a file that advise --apply wrote", str(path))
    if torn:
        os.ftruncate(file.fileno(), size - len(torn))
        os.fsync(file.fileno())


def _account() -> str:
    """The account that makes the changes, and whose session it is where sudo says so."""
    user_id = os.getuid()
    try:
        name = pwd.getpwuid(user_id).pw_name
    except KeyError:
        name = str(user_id)
    uid = os.environ.get("SUDO_UID", "")
    return f"{name} (sudo, user id {uid})" if uid.isdigit() and len(uid) <= 10 else name
