"""JobManager's database: jobs, journal, submissions, counters and the owners' uses; see `usage_store` for usage."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    Row,
    Select,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)

from malletrain.common.files import write_atomically
from malletrain.common.job_limits import MAX_PHASE_SECONDS
from malletrain.job_manager.machine.fair_share import OwnerUse
from malletrain.job_manager.machine.jobs import Job, JobSpec, job_id, job_number
from malletrain.job_manager.machine.state import JobEvent, ManagerState
from malletrain.job_manager.machine.transitions import JobReason
from malletrain.job_manager.storage.change import Change, Submission
from malletrain.job_manager.storage.usage_store import (
    BIG_INTEGER,
    METADATA,
    chunks,
    count_last_samples,
    give_owner,
    keep_removed,
    load_usage,
    write_usage,
)
from malletrain.model.job_state import JobState
from malletrain.model.job_terms import bounded_weight
from malletrain.model.scaling import MAX_RATE
from malletrain.runtime.database.errors import CommitUnknownError, DatabaseTakenError, DatabaseUnavailableError
from malletrain.runtime.errors import InvalidInputError, MalleTrainError, UnavailableError
from malletrain.runtime.kernel.documents import from_document, to_document

_JOBS = Table(
    "jobs",
    METADATA,
    Column("number", BIG_INTEGER, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False, index=True),
    Column("body", Text, nullable=False),
    Column("owner", String(256), nullable=False, index=True, server_default=""),
)
_JOURNAL = Table(
    "journal",
    METADATA,
    Column("sequence", BIG_INTEGER, primary_key=True, autoincrement=True),
    Column("unix_seconds", Float, nullable=False),
    Column("job_number", BIG_INTEGER, nullable=False, index=True),
    Column("from_state", String(16)),
    Column("to_state", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("nodes", Text, nullable=False),
    Column("release_seconds", Float, nullable=False),
    Column("reason_code", String(32), nullable=False, server_default=JobReason.UNSPECIFIED.value),
    sqlite_autoincrement=True,
)
_SUBMISSIONS = Table(
    "submissions",
    METADATA,
    Column("request_id", String(256), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("job_numbers", Text, nullable=False),
)
_COUNTERS = Table(
    "counters",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("value", BIG_INTEGER, nullable=False),
)
_LEDGER = Table(
    "owner_uses",
    METADATA,
    Column("owner", String(256), primary_key=True),
    Column("node_seconds", Float, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("since", Float, nullable=False),
    Column("weight", Float, nullable=False),
)
_GENERATION = "plan_generation"
_LAST_CHANGE = "last_change"
_HALF = 31
"""Bits of the number of a change, and of the number of the process that made it."""
_SELECT_JOB = select(_JOBS.c.body, _JOBS.c.owner)
_FINAL_STATES = [state.value for state in JobState if state.final]


@dataclass(frozen=True)
class StoredEvent:
    """A row of the journal with its number."""

    sequence: int
    event: JobEvent


class UnknownJobError(MalleTrainError):
    """A stored job can't be read by this version; the message is for people."""


def encode(job: Job) -> str:
    """A job as JSON."""
    return json.dumps(to_document(job), separators=(",", ":"))


def decode(body: str) -> Job:
    """A job from JSON that this version, an earlier or a later one wrote. Fields of a later one are left out.

    A weight, rate or duration out of bounds becomes the nearest that is in bounds.

    Raises:
        UnknownJobError: a later version has given a field a value that this one does not know.
    """
    fields: dict[str, Any] = json.loads(body)
    if "strikes" in fields:  # the name in version 0.1.0
        fields["counted_failures"] = fields.pop("strikes")
    try:
        job = from_document(Job, fields, ignore_unknown=True)
    except ValueError as error:
        raise UnknownJobError(
            f"job {job_id(fields['number'])} is stored with a value that this version of MalleTrain does not know "
            f"({error}): use the version that wrote it or a later one, or restore a backup that was made before "
            "(malletrain restore)"
        ) from error
    spec = _bound_figures(job.spec)
    return job if spec == job.spec else replace(job, spec=spec)


def _bound_figures(spec: JobSpec) -> JobSpec:
    """A spec with figures in bounds. Earlier versions took any finite ones from a submission."""

    def seconds(passed: float | None) -> float | None:
        return None if passed is None else min(passed, MAX_PHASE_SECONDS)

    return replace(
        spec,
        weight=bounded_weight(spec.weight),
        curve=tuple(replace(point, rate=min(point.rate, MAX_RATE)) for point in spec.curve),
        scale_up_seconds=seconds(spec.scale_up_seconds),
        scale_down_seconds=seconds(spec.scale_down_seconds),
    )


class JobStore:
    """JobManager's database. What a stimulus changed is stored completely or not at all, and survives a kill."""

    def __init__(self, engine: Engine, owner_of_earlier_jobs: str = "", writer: int | None = None) -> None:
        """The tables must be there: `malletrain.runtime.database.migrating` makes them.

        Args:
            engine: The database.
            owner_of_earlier_jobs: Who owns the jobs that were stored when jobs had no owners. Noted once: it does not
                change with the account that opens the database later.
            writer: Number of this process, of 31 bits; None: a random one.
        """
        self._engine = engine
        self._unknown: Change | None = None
        self._next = (secrets.randbits(_HALF) if writer is None else writer) << _HALF
        with engine.connect() as connection:
            self._last = _counter(connection, _LAST_CHANGE)
        if owner_of_earlier_jobs:
            with self._engine.begin() as connection:
                connection.execute(update(_JOBS).where(_JOBS.c.owner == "").values(owner=owner_of_earlier_jobs))
                give_owner(connection, owner_of_earlier_jobs)

    def close(self) -> None:
        """Close the database."""
        self._engine.dispose()

    def save(self, change: Change) -> None:
        """Store a change in one transaction.

        Each change has a number, which the database keeps in the same transaction in place of that of the change
        before. So one that is saved again after a CommitUnknownError is stored once, and so nobody else can have
        stored anything in between.

        Raises:
            DatabaseUnavailableError: nothing is stored.
            CommitUnknownError: it is stored or not. Nothing else may be saved before this change.
            DatabaseTakenError: another process has stored something since this one began.
            sqlalchemy.exc.IntegrityError: the submission's request_id is taken; nothing is stored.
        """
        assert self._unknown is None or self._unknown is change, "an earlier change has not been settled"
        number = self._next + 1
        with self._engine.connect() as connection:
            if self._replace_last(connection, number):
                _write(connection, change)
            try:
                connection.commit()
            except DatabaseUnavailableError as error:
                self._unknown = change
                raise CommitUnknownError("job_manager") from error
        self._unknown, self._last, self._next = None, number, number

    def _replace_last(self, connection: Connection, number: int) -> bool:
        """Put the number of a change in place of that of the last one; False if it is there already."""
        present = update(_COUNTERS).where(_COUNTERS.c.name == _LAST_CHANGE, _COUNTERS.c.value == self._last)
        if connection.execute(present.values(value=number)).rowcount:
            return True
        last = _counter(connection, _LAST_CHANGE)
        if last is None and self._last is None:
            connection.execute(insert(_COUNTERS).values(name=_LAST_CHANGE, value=number))
            return True
        if last != number:
            raise DatabaseTakenError("another JobManager writes to this one's database: only one may use it at a time")
        return False

    def load(self) -> ManagerState:
        """The state at a start of JobManager; the idle set is not known yet."""
        query = _SELECT_JOB.where(_JOBS.c.state.not_in(_FINAL_STATES)).order_by(_JOBS.c.number)
        with self._engine.connect() as connection:
            jobs = [_stored_job(row.body, row.owner) for row in connection.execute(query)]
            last = connection.scalar(select(func.max(_JOBS.c.number))) or 0
            generation = _counter(connection, _GENERATION) or 0
            ledger = {
                row.owner: OwnerUse(row.node_seconds, row.nodes, row.since, row.weight)
                for row in connection.execute(select(_LEDGER).order_by(_LEDGER.c.owner))
            }
            usage = load_usage(connection)
        return ManagerState({job.id: job for job in jobs}, None, generation, last, ledger, usage=usage)

    def job(self, number: int) -> Job | None:
        """A job in any state; None if there is no such job."""
        with self._engine.connect() as connection:
            row = connection.execute(_SELECT_JOB.where(_JOBS.c.number == number)).one_or_none()
        return None if row is None else _stored_job(row.body, row.owner)

    def jobs(
        self, after: int, limit: int, states: Collection[JobState], owner: str = "", *, newest_first: bool = False
    ) -> list[Job]:
        """Jobs with a number above `after`, oldest first, or with one below it, newest first.

        Args:
            after: Number; 0: from the first one on, in either order.
            limit: Most jobs.
            states: Only jobs in these states; empty: in all.
            owner: Only jobs of this owner; empty: of all.
            newest_first: Whether the newest come first.
        """
        number = _JOBS.c.number
        query = _SELECT_JOB.order_by(number.desc() if newest_first else number).limit(limit)
        if after:
            query = query.where(number < after if newest_first else number > after)
        if states:
            query = query.where(_JOBS.c.state.in_([state.value for state in states]))
        if owner:
            query = query.where(_JOBS.c.owner == owner)
        with self._engine.connect() as connection:
            return [_stored_job(row.body, row.owner) for row in connection.execute(query)]

    def jobs_from(self, number: int, limit: int = 1000) -> list[Job]:
        """Jobs from a number on, oldest first: by default as many as a submission may have."""
        return self.jobs(number - 1, limit, ())

    def owners(self, identifiers: Collection[str]) -> dict[str, str]:
        """Owner of each of these jobs, by identifier; jobs that there are not are left out."""
        query = select(_JOBS.c.number, _JOBS.c.owner).where(_JOBS.c.number.in_(map(job_number, identifiers)))
        with self._engine.connect() as connection:
            return {job_id(row.number): row.owner for row in connection.execute(query)}

    def events(self, after: int, limit: int, job_number: int | None) -> list[StoredEvent]:
        """Rows of the journal with a sequence above `after`, oldest first; of all jobs if none is named."""
        query = select(_JOURNAL).where(_JOURNAL.c.sequence > after).order_by(_JOURNAL.c.sequence).limit(limit)
        if job_number is not None:
            query = query.where(_JOURNAL.c.job_number == job_number)
        with self._engine.connect() as connection:
            return [_stored_event(row) for row in connection.execute(query)]

    def last_sequence(self) -> int:
        """Number of the last row of the journal; 0 where there is none."""
        with self._engine.connect() as connection:
            return connection.scalar(select(func.max(_JOURNAL.c.sequence))) or 0

    def last_events(self, identifier: str, limit: int = 20) -> list[JobEvent]:
        """The last rows of the journal of a job, oldest first; of all jobs if the identifier is empty."""
        query = select(_JOURNAL).order_by(_JOURNAL.c.sequence.desc()).limit(limit)
        if identifier:
            query = query.where(_JOURNAL.c.job_number == job_number(identifier))
        with self._engine.connect() as connection:
            return [_stored_event(row).event for row in connection.execute(query)][::-1]

    def last_ended(self, limit: int) -> list[Job]:
        """The jobs that ended last, the latest last."""
        ends = select(_JOURNAL.c.job_number).where(_JOURNAL.c.to_state.in_(_FINAL_STATES))
        latest = ends.order_by(_JOURNAL.c.sequence.desc()).limit(limit)
        with self._engine.connect() as connection:
            places = {number: place for place, number in enumerate(connection.scalars(latest))}
            query = _SELECT_JOB.where(_JOBS.c.state.in_(_FINAL_STATES))
            jobs = [
                _stored_job(row.body, row.owner)
                for numbers in chunks(list(places))
                for row in connection.execute(query.where(_JOBS.c.number.in_(numbers)))
            ]
        return sorted(jobs, key=lambda job: -places[job.number])

    def ended_before(self, unix_seconds: float, after: int, limit: int) -> list[int]:
        """Numbers of jobs that ended before a time, lowest first, from above `after`.

        The newest job is not among them: the next number is counted from it.
        """
        query = _ended_before(unix_seconds).where(_JOBS.c.number > after).order_by(_JOBS.c.number).limit(limit)
        with self._engine.connect() as connection:
            return list(connection.scalars(query))

    def bytes_of_owners(self, owner: str = "") -> dict[str, tuple[int, int]]:
        """Bytes and number of the jobs of each owner, or of one. Their JSON is ASCII: a character is a byte."""
        query = select(_JOBS.c.owner, func.sum(func.length(_JOBS.c.body)), func.count()).group_by(_JOBS.c.owner)
        if owner:
            query = query.where(_JOBS.c.owner == owner)
        with self._engine.connect() as connection:
            return {name: (int(size), jobs) for name, size, jobs in connection.execute(query)}

    def ended_of(self, owner: str, after: int, limit: int) -> list[int]:
        """Numbers of an owner's jobs that have ended, oldest first, from above `after`; never the newest job."""
        query = _ended_before(math.inf).where(_JOBS.c.owner == owner, _JOBS.c.number > after)
        with self._engine.connect() as connection:
            return list(connection.scalars(query.order_by(_JOBS.c.number).limit(limit)))

    def removable(self, numbers: Sequence[int], unix_seconds: float) -> tuple[list[int], list[str]]:
        """What may be deleted of jobs that ended before a time: a submission is answered with all its jobs or none.

        Args:
            numbers: Numbers of such jobs.
            unix_seconds: The time.

        Returns:
            Those of the jobs whose submission has no job that did not end before then, and the `request_id` of each of
            these submissions, which go with the first of their jobs.
        """
        wanted = frozenset(numbers)
        with self._engine.connect() as connection:
            stored = connection.execute(select(_SUBMISSIONS.c.request_id, _SUBMISSIONS.c.job_numbers))
            touched = {
                row.request_id: jobs for row in stored if wanted & (jobs := frozenset(json.loads(row.job_numbers)))
            }
            others = sorted(frozenset().union(*touched.values()) - wanted)
            remaining: set[int] = set()
            for chunk in chunks(others):
                remaining |= set(connection.scalars(select(_JOBS.c.number).where(_JOBS.c.number.in_(chunk))))
                remaining -= set(connection.scalars(_ended_before(unix_seconds).where(_JOBS.c.number.in_(chunk))))
        held = frozenset().union(*(jobs for jobs in touched.values() if jobs & remaining))
        requests = [request_id for request_id, jobs in touched.items() if not jobs & remaining]
        return [number for number in numbers if number not in held], requests

    def submission(self, request_id: str) -> Submission | None:
        """The submission with a request_id; None if there was none."""
        query = select(_SUBMISSIONS).where(_SUBMISSIONS.c.request_id == request_id)
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return Submission(row.request_id, row.digest, tuple(json.loads(row.job_numbers)))


def _ended_before(unix_seconds: float) -> Select[tuple[int]]:
    """Numbers of jobs that ended before a time, without the newest job."""
    newest = select(func.max(_JOBS.c.number)).scalar_subquery()
    return (
        select(_JOBS.c.number)
        .join(_JOURNAL, _JOURNAL.c.job_number == _JOBS.c.number)
        .where(_JOBS.c.state.in_(_FINAL_STATES), _JOBS.c.number < newest)
        .where(_JOURNAL.c.to_state.in_(_FINAL_STATES), _JOURNAL.c.unix_seconds < unix_seconds)
        .distinct()
    )


def _counter(connection: Connection, name: str) -> int | None:
    return connection.scalar(select(_COUNTERS.c.value).where(_COUNTERS.c.name == name))


def _write(connection: Connection, change: Change) -> None:
    _replace_jobs(connection, change.jobs)
    write_usage(connection, change.usage)
    count_last_samples(connection, (job for job in change.jobs if job.state.final))
    if change.events:
        connection.execute(insert(_JOURNAL), [_event_row(event) for event in change.events])
    if change.generation is not None:
        connection.execute(delete(_COUNTERS).where(_COUNTERS.c.name == _GENERATION))
        connection.execute(insert(_COUNTERS).values(name=_GENERATION, value=change.generation))
    _replace_uses(connection, change.uses, change.forgotten)
    if change.removed_jobs:
        _remove_jobs(connection, change.removed_jobs, change.removed_requests)
    if (submission := change.submission) is not None:
        numbers = json.dumps(submission.job_numbers)
        row = {"request_id": submission.request_id, "digest": submission.digest, "job_numbers": numbers}
        connection.execute(insert(_SUBMISSIONS).values(row))


def _remove_jobs(connection: Connection, numbers: Collection[int], request_ids: Collection[str]) -> None:
    """Delete jobs, as far as they have ended, their journal, and submissions."""
    ended = select(_JOBS.c.number).where(_JOBS.c.number.in_(numbers), _JOBS.c.state.in_(_FINAL_STATES))
    keep_removed(connection, ended)
    connection.execute(delete(_JOURNAL).where(_JOURNAL.c.job_number.in_(ended)))
    connection.execute(delete(_JOBS).where(_JOBS.c.number.in_(numbers), _JOBS.c.state.in_(_FINAL_STATES)))
    connection.execute(delete(_SUBMISSIONS).where(_SUBMISSIONS.c.request_id.in_(request_ids)))


def _replace_jobs(connection: Connection, jobs: Collection[Job]) -> None:
    for chunk in chunks(list(jobs)):
        connection.execute(delete(_JOBS).where(_JOBS.c.number.in_([job.number for job in chunk])))
        connection.execute(insert(_JOBS), [_job_row(job) for job in chunk])


def _job_row(job: Job) -> dict[str, object]:
    return {"number": job.number, "state": job.state.value, "body": encode(job), "owner": job.owner}


def _replace_uses(connection: Connection, uses: Mapping[str, OwnerUse], forgotten: Collection[str]) -> None:
    if uses or forgotten:
        connection.execute(delete(_LEDGER).where(_LEDGER.c.owner.in_([*uses, *forgotten])))
    if uses:
        connection.execute(insert(_LEDGER), [{"owner": owner, **asdict(use)} for owner, use in uses.items()])


def _stored_job(body: str, owner: str) -> Job:
    job = decode(body)
    return job if job.owner else replace(job, owner=owner)  # the JSON of earlier jobs has no owner


def _event_row(event: JobEvent) -> dict[str, object]:
    return {
        "unix_seconds": event.unix_seconds,
        "job_number": job_number(event.job_id),
        "from_state": None if event.from_state is None else event.from_state.value,
        "to_state": event.to_state.value,
        "reason": event.reason.replace("\0", "\N{REPLACEMENT CHARACTER}"),  # of a log, and PostgreSQL stores no NUL
        "reason_code": event.reason_code.value,
        "nodes": json.dumps(event.nodes),
        "release_seconds": event.release_seconds,
    }


def _stored_event(row: Row[tuple[object, ...]]) -> StoredEvent:
    event = JobEvent(
        unix_seconds=row.unix_seconds,
        job_id=job_id(row.job_number),
        from_state=None if row.from_state is None else JobState(row.from_state),
        to_state=JobState(row.to_state),
        reason_code=JobReason(row.reason_code),
        reason=row.reason,
        nodes=tuple(json.loads(row.nodes)),
        release_seconds=row.release_seconds,
    )
    return StoredEvent(row.sequence, event)


_FILE = "last-job-number"
_NAME = re.compile(r"j([0-9]{6,15})(?:\.json)?\Z")
"""Of a job's folder, and of the record of what was launched for it. Longer numbers are no jobs of ours."""
_MAX_DIGITS = 15


class JobNumbers:
    """Keeps the largest number of a job in a file of the state folder, which neither backup nor restore touches.

    A restored database does not know of jobs that were submitted after its backup. Their numbers must not be given out
    again: folders, logs, processes and tokens of these jobs are still there.
    """

    def __init__(self, state_dir: Path, jobs_dir: Path) -> None:
        self._file = state_dir / _FILE
        self._folders = (jobs_dir, state_dir / "launched")

    def largest(self) -> int:
        """The largest number that was noted, or of which a job's folder or launch record is there; 0: there is none.

        Raises:
            InvalidInputError: the file or a folder can't be read.
        """
        try:
            noted = self._file.read_text(encoding="ascii").strip() if self._file.exists() else "0"
            present = max_number(path.name for folder in self._folders if folder.is_dir() for path in folder.iterdir())
        except (OSError, ValueError) as error:
            raise InvalidInputError("state_dir", f"a readable {self._file} and folders of jobs ({error})") from error
        if not noted.isdecimal() or len(noted) > _MAX_DIGITS:
            raise InvalidInputError(str(self._file), "the largest number of a job", noted)
        return max(int(noted), present)

    def keep_number(self, number: int) -> None:
        """Keep a number, before a job is given it. A kill of this process does not undo that.

        Raises:
            UnavailableError: it can't be written.
        """
        try:
            write_atomically(self._file, f"{number}\n", mode=0o600, sync=False)
        except OSError as error:
            raise UnavailableError(f"{self._file} can't be written: {error.strerror}") from error


def max_number(names: Iterable[str]) -> int:
    """The largest number among names of jobs' folders and records; 0: there is none. Pure."""
    return max((int(match[1]) for name in names if (match := _NAME.match(name))), default=0)
