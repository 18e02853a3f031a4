"""Reads the past of an installation from copies of its databases: nothing is written there, and services may run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from malletrain.allocator.idle_store import IdleStore
from malletrain.allocator.plan_store import PlanStore
from malletrain.job_manager.jobs import Job
from malletrain.job_manager.state import JobEvent
from malletrain.job_manager.store import JobStore
from malletrain.model.scaling import ScalingPoint
from malletrain.monitor.store import MonitorStore
from malletrain.runtime.backup.writing import copy_database
from malletrain.runtime.config import Settings
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.copying import sqlite_file
from malletrain.runtime.database.interrupted import check_no_restore
from malletrain.runtime.database.schema_history import SchemaHistory, revision_of
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.simulator.journal.record import BelievedJob, Journal, MeasuredJob, RecordedJob

_SERVICES = ("allocator", "monitor", "job_manager")
"""Who refers to jobs is copied before JobManager, which numbers them."""
_ROWS = 10_000
_USED = "a state folder that services have used"


def read_journal(state_dir: str, settings: Settings) -> Journal:
    """The past of an installation.

    Args:
        state_dir: Its state folder. Databases on PostgreSQL are read if it is that of the settings.
        settings: Settings that are in force here.

    Raises:
        InvalidInputError: it is no state folder, or there is nothing in it that could be replayed.
        SchemaVersionError: a later version wrote it.
        MalleTrainError: a database can't be read, or a restore was interrupted.
    """
    addresses = _addresses(state_dir, settings)
    with TemporaryDirectory(prefix="malletrain-journal-") as folder, _readable(state_dir):
        engines = {address.service: _copy(address, Path(folder)) for address in addresses}
        return _journal(engines, state_dir)


def _addresses(state_dir: str, settings: Settings) -> list[DatabaseAddress]:
    if "://" in state_dir:
        expected = (
            "a folder; for databases on PostgreSQL the state_dir of the settings that name them (./malletrain.toml)"
        )
        raise InvalidInputError("--journal", expected)
    path = Path(state_dir)
    if not path.is_dir():
        raise InvalidInputError("--journal", _USED, state_dir)
    check_no_restore(path)
    if path.resolve() == settings.state_dir.resolve():
        return [settings.database(service) for service in _SERVICES]
    return [DatabaseAddress(service, path) for service in _SERVICES]


@contextmanager
def _readable(state_dir: str) -> Iterator[None]:
    try:
        yield
    except MalleTrainError:
        raise
    except (sqlite3.Error, SQLAlchemyError, OSError, ValueError) as error:
        raise MalleTrainError(f"the journal in {state_dir} can't be read: {error}") from error


def _copy(address: DatabaseAddress, folder: Path) -> Engine:
    """A copy with the tables of this version."""
    copy = folder / f"{address.service}.sqlite"
    if not copy_database(address, copy):
        raise InvalidInputError("--journal", f"{_USED}; {address} is missing", str(address.state_dir))
    engine, history = sqlite_file(copy), SchemaHistory(address.service)
    with engine.begin() as connection:
        found = revision_of(connection)
        history.check(found, address)
        if found != history.newest:
            history.upgrade(connection)
    return engine


def _journal(engines: dict[str, Engine], state_dir: str) -> Journal:
    idle = tuple(IdleStore(engines["allocator"], 0).rows())
    if not idle:
        expected = "a state folder in which the Allocator has recorded idle nodes, as it does from this version on"
        raise InvalidInputError("--journal", expected, state_dir)
    store = JobStore(engines["job_manager"])
    jobs, events = _all_jobs(store), _all_events(store)
    believed, pools = _believed(PlanStore(engines["allocator"], 1), {job.id for job in jobs})
    measured = {
        found.job_id: MeasuredJob(
            found.progress.samples,
            found.progress.samples_lost,
            found.progress.last_record_unix_seconds,
            tuple(ScalingPoint(point.nodes, point.rate) for point in found.points),
            found.rescales,
            tuple(sorted(one.first_unix_seconds for one in found.reporters.values() if one.first_unix_seconds)),
            found.usual_step_seconds,
        )
        for found in MonitorStore(engines["monitor"]).load()
        if found.progress.last_record_unix_seconds > 0
    }
    recorded = (
        RecordedJob(job, tuple(events[job.id]), measured.get(job.id), believed.get(job.id))
        for job in jobs
        if job.id in events
    )
    return Journal(idle, tuple(recorded), pools)


def _all_jobs(store: JobStore) -> list[Job]:
    found: list[Job] = []
    while page := store.jobs(found[-1].number if found else 0, _ROWS, ()):
        found += page
    return found


def _all_events(store: JobStore) -> dict[str, list[JobEvent]]:
    found: dict[str, list[JobEvent]] = {}
    last = 0
    while page := store.events(last, _ROWS, None):
        last = page[-1].sequence
        for stored in page:
            found.setdefault(stored.event.job_id, []).append(stored.event)
    return found


def _believed(plans: PlanStore, wanted: set[str]) -> tuple[dict[str, BelievedJob], frozenset[str]]:
    """What the newest plan with each job believed of it, and the pools of the newest plan."""
    found: dict[str, BelievedJob] = {}
    pools: Sequence[str] | None = None
    for plan in plans.newest_first():
        pools = [part.pool for part in plan.parts] if pools is None else pools
        for job in plan.problem.jobs:
            if job.id in wanted:
                curve = tuple(ScalingPoint(point.nodes, point.rate) for point in job.curve)
                found[job.id] = BelievedJob(curve, job.scale_up_seconds, job.scale_down_seconds)
                wanted.discard(job.id)
        if not wanted:
            break
    return found, frozenset(pools or ())
