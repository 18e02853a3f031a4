"""Reads the past of an installation: from copies of the databases in a state folder, or from its running services.

Nothing is written to the databases, and services may run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from malletrain.allocator.history.idle_history import IdleRow
from malletrain.allocator.history.idle_store import IdleStore
from malletrain.allocator.history.plan_store import PlanStore
from malletrain.allocator.utilization.definition import MinuteUse
from malletrain.allocator.utilization.store import UtilizationStore
from malletrain.caller.credentials import caller_credential
from malletrain.cli.journal.assembling import PlanBelief, journal_of
from malletrain.cli.journal.live import LIVE, read_live
from malletrain.cli.shared.stubs import ServiceStubs, explain
from malletrain.job_manager.machine.jobs import Job
from malletrain.job_manager.machine.state import JobEvent
from malletrain.job_manager.storage.store import JobStore
from malletrain.model.scaling import ScalingPoint
from malletrain.monitor.machine.progress import first_batches
from malletrain.monitor.store import MonitorStore
from malletrain.runtime.access.credentials import Credential
from malletrain.runtime.backup.writing import copy_database
from malletrain.runtime.config import Settings
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.copying import sqlite_file
from malletrain.runtime.database.interrupted import check_no_restore
from malletrain.runtime.database.schema_history import SchemaHistory, revision_of
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.simulator.journal.record import Journal, MeasuredJob


def read_journal(place: str, settings: Settings) -> Journal:
    """The past of an installation.

    Args:
        place: Its state folder, or `live`: the services of the settings. Databases on PostgreSQL are read if the folder
            is that of the settings.
        settings: Settings that are in force here.

    Raises:
        InvalidInputError: it is no state folder, or there is nothing in it that could be replayed.
        SchemaVersionError: a later version wrote it.
        MalleTrainError: a database can't be read, a restore was interrupted, or a service does not answer.
    """
    if place != LIVE:
        return read_stored(place, settings)
    return read_from_services(settings, caller_credential(settings))


def read_from_services(settings: Settings, credential: Credential) -> Journal:
    """The past of a running installation.

    Args:
        settings: Where its services are.
        credential: What is shown to them.

    Raises:
        InvalidInputError: there is nothing in it that could be replayed.
        MalleTrainError: a service does not answer, or is of a later version.
    """
    stubs = ServiceStubs(settings, credential)
    try:
        return read_live(stubs)
    except grpc.RpcError as error:
        raise explain(error) from error
    except InvalidInputError:
        raise
    except ValueError as error:
        raise MalleTrainError(f"the services tell what this version does not know: {error}") from error
    finally:
        stubs.close()


_SERVICES = ("allocator", "monitor", "job_manager")
"""Who refers to jobs is copied before JobManager, which numbers them."""
_ROWS = 10_000
_USED = "a state folder that services have used"


def read_stored(state_dir: str, settings: Settings) -> Journal:
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
        return journal_of(_StoredPast(engines), state_dir)


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


class _StoredPast:
    """What is in copies of the databases."""

    def __init__(self, engines: dict[str, Engine]) -> None:
        self._engines = engines
        self._jobs = JobStore(engines["job_manager"])

    def idle(self) -> Iterable[IdleRow]:
        return IdleStore(self._engines["allocator"], 0).rows()

    def beliefs(self) -> Iterator[PlanBelief]:
        for plan in PlanStore(self._engines["allocator"], 1).newest_first():
            yield PlanBelief(tuple(part.pool for part in plan.parts), plan.problem.jobs)

    def measured(self) -> Iterator[tuple[str, MeasuredJob]]:
        for found in MonitorStore(self._engines["monitor"]).load():
            yield (
                found.job_id,
                MeasuredJob(
                    found.progress.samples,
                    found.progress.samples_lost,
                    found.progress.last_record_unix_seconds,
                    tuple(ScalingPoint(point.nodes, point.rate) for point in found.points),
                    found.rescales,
                    first_batches(found.reporters.values()),
                    found.usual_step_seconds,
                ),
            )

    def utilization(self) -> Iterable[MinuteUse]:
        return UtilizationStore(self._engines["allocator"]).since(0.0)

    def jobs(self) -> Iterator[Job]:
        last = 0
        while page := self._jobs.jobs(last, _ROWS, ()):
            yield from page
            last = page[-1].number

    def events(self) -> Iterator[JobEvent]:
        last = 0
        while page := self._jobs.events(last, _ROWS, None):
            yield from (stored.event for stored in page)
            last = page[-1].sequence
