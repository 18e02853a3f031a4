"""Ended jobs are deleted after their time: what is MalleTrain's, and nothing else."""

from __future__ import annotations

import os
import pwd
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from sqlalchemy import Connection, event

from malletrain.common import job_folder
from malletrain.common.accounts import account_named
from malletrain.job_manager.launching.folder import JobFolder, launch_record
from malletrain.job_manager.machine.fair_share import OwnerUse
from malletrain.job_manager.machine.stimuli import Cancelled
from malletrain.job_manager.storage.change import Change, Submission
from malletrain.job_manager.storage.retention import Retention
from malletrain.job_manager.storage.store import JobStore
from malletrain.runtime.backup.lock import between_backups, during_backup
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.migrating import open_database
from tests.job_manager.harness import MachineHarness
from tests.support.builders import job_spec
from tests.support.clocks import ManualClock
from tests.support.postgresql import Locate
from tests.support.stranger import let_others_through, needs_another_account

DAY = 86_400.0


@pytest.fixture
def database(locate: Locate) -> DatabaseAddress:
    return locate("job_manager")


def store_jobs(address: DatabaseAddress) -> JobStore:
    """Jobs 1 to 4 of ada: 1 ended on day 0, 2 and 3 on day 50, 4 trains on. Job 5 ended on day 0."""
    machine = MachineHarness(now=0.0)
    machine.submit(*(job_spec() for _ in range(5)), owner="ada")
    machine(Cancelled("j000001", "ada"))
    machine(Cancelled("j000005", "ada"))
    machine.now = 50 * DAY
    machine(Cancelled("j000002", "ada"))
    machine(Cancelled("j000003", "ada"))
    store = JobStore(open_database(address))
    jobs = [*machine.state.jobs.values(), *machine.ended.values()]
    store.save(Change(jobs, machine.events, uses={"ada": OwnerUse(3600.0, 2, 100.0, 1.0)}))
    store.save(Change(submission=Submission("whole", "d", (1,))))
    store.save(Change(submission=Submission("half", "d", (2, 3))))
    return store


class Kept:
    """What retention asks of others, with an installation of the test's own."""

    def __init__(self, address: DatabaseAddress, state_dir: Path) -> None:
        self.store, self.state_dir = JobStore(open_database(address)), state_dir
        self.clock = ManualClock(start=100 * DAY)
        self.forgotten: list[str] = []
        self.monitor_answers = True

    def folder(self, identifier: str) -> JobFolder:
        return JobFolder(self.state_dir / "jobs" / identifier)

    async def forget(self, identifiers: Collection[str]) -> bool:
        self.forgotten += identifiers
        return self.monitor_answers

    async def remove(self, numbers: Collection[int], request_ids: Collection[str]) -> None:
        self.store.save(Change(removed_jobs=numbers, removed_requests=request_ids))

    def retention(self, days: float = 90.0) -> Retention:
        return Retention(self.store, self.folder, self.forget, self.remove, self.state_dir, days, self.clock)

    def numbers(self) -> list[int]:
        return [job.number for job in self.store.jobs(0, 100, ())]


def filled(path: Path) -> Path:
    """A job's folder after its end."""
    (path / job_folder.LOGS_FOLDER).mkdir(parents=True)
    (path / job_folder.CHECKPOINTS_FOLDER).mkdir()
    for name in (*job_folder.OWN_FILES, "logs/n1.0.log", "logs/n1.0.times", "logs/sidecar.log"):
        (path / name).write_text("x")
    return path


async def test_what_ended_long_ago_goes_and_the_rest_stays(database: DatabaseAddress, tmp_path: Path) -> None:
    store_jobs(database).close()
    kept = Kept(database, tmp_path)
    before = kept.store.load()
    old, young = filled(kept.folder("j000001").path), filled(kept.folder("j000002").path)
    assert await kept.retention().remove_batch() == 1
    assert kept.numbers() == [2, 3, 4, 5]
    assert kept.forgotten == ["j000001"]
    assert not old.exists()
    assert (young / "logs/n1.0.log").exists()
    assert {stored.event.job_id for stored in kept.store.events(0, 100, None)} == {f"j00000{n}" for n in (2, 3, 4, 5)}
    assert kept.store.submission("whole") is None
    assert kept.store.submission("half") is not None, "its jobs are still there"
    after = kept.store.load()
    assert (after.ledger, after.jobs) == (before.ledger, before.jobs)
    assert await kept.retention().remove_batch() == 0


@pytest.mark.parametrize("has_folder", [True, False])
async def test_the_record_of_a_launch_goes_whether_or_not_there_is_a_folder(
    database: DatabaseAddress, tmp_path: Path, has_folder: bool
) -> None:
    store_jobs(database).close()
    kept = Kept(database, tmp_path)
    if has_folder:
        filled(kept.folder("j000001").path)
    gone, stays = (launch_record(tmp_path, identifier) for identifier in ("j000001", "j000002"))
    gone.parent.mkdir()
    for record in (gone, stays):
        record.write_text("{}")
    assert await kept.retention().remove_batch() == 1
    assert (gone.exists(), stays.exists()) == (False, True)


async def test_the_jobs_of_a_submission_go_together(database: DatabaseAddress, tmp_path: Path) -> None:
    store_jobs(database).close()
    kept = Kept(database, tmp_path)
    kept.store.save(Change(submission=Submission("both", "d", (1, 2))))
    folder = filled(kept.folder("j000001").path)
    assert await kept.retention().remove_batch() == 1, "looked at"
    assert (kept.numbers(), kept.forgotten) == ([1, 2, 3, 4, 5], [])
    assert (folder / "logs/n1.0.log").exists()
    assert kept.store.submission("both") is not None
    assert await kept.retention(days=1).remove_batch() == 3
    assert kept.numbers() == [4, 5]
    assert kept.store.submission("both") is None


async def test_numbers_are_never_used_again(database: DatabaseAddress, tmp_path: Path) -> None:
    store_jobs(database).close()
    kept = Kept(database, tmp_path)
    assert await kept.retention(days=0.001).remove_batch() == 3
    assert kept.numbers() == [4, 5]
    assert kept.store.submission("half") is None
    assert JobStore(open_database(database)).load().last_number == 5


def test_a_large_submission_is_asked_for_in_parts(database: DatabaseAddress) -> None:
    store_jobs(database).close()
    engine = open_database(database)
    store = JobStore(engine)
    store.save(Change(submission=Submission("large", "d", tuple(range(1, 2500)))))
    event.listen(engine, "engine_connect", limit_variables)
    assert store.removable([1], 90 * DAY) == ([], ["whole"])


def limit_variables(connection: Connection) -> None:
    """As in a build of SQLite that takes few."""
    if isinstance(found := connection.connection.driver_connection, sqlite3.Connection):
        found.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)


async def test_nothing_goes_during_a_backup_nor_before_monitor_has_answered(
    database: DatabaseAddress, tmp_path: Path
) -> None:
    store_jobs(database).close()
    kept = Kept(database, tmp_path)
    old = filled(kept.folder("j000001").path)
    with during_backup(tmp_path), during_backup(tmp_path):
        assert await kept.retention().remove_batch() == 0
        assert old.exists()
    kept.monitor_answers = False
    assert await kept.retention().remove_batch() == 0
    assert kept.numbers() == [1, 2, 3, 4, 5]
    kept.monitor_answers = True
    assert await kept.retention().remove_batch() == 1
    with between_backups(tmp_path), pytest.raises(BlockingIOError), between_backups(tmp_path):
        pass


async def test_a_folder_that_can_not_be_emptied_keeps_its_job_and_no_other(
    database: DatabaseAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_jobs(database).close()
    kept = Kept(database, tmp_path)
    filled(kept.folder("j000001").path)
    empty = JobFolder.remove_own_files

    def refuse(folder: JobFolder) -> None:
        if folder.path.name == "j000001":
            raise PermissionError("no")
        empty(folder)

    monkeypatch.setattr(JobFolder, "remove_own_files", refuse)
    assert await kept.retention(days=1).remove_batch() == 3
    assert kept.numbers() == [1, 4, 5]


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from malletrain.runtime.database.address import DatabaseAddress
from tests.job_manager.test_retention import Kept

url, state_dir, password_file, step = sys.argv[1:]
address = DatabaseAddress("job_manager", Path(state_dir), url, Path(password_file) if password_file else None)
kept = Kept(address, Path(state_dir))

async def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(kept, step, die)
asyncio.run(kept.retention().remove_batch())
"""


@pytest.mark.parametrize("step", ["forget", "remove"])
async def test_after_kill_9_it_is_done_again(database: DatabaseAddress, step: str) -> None:
    store_jobs(database).close()
    state_dir = database.state_dir
    kept = Kept(database, state_dir)
    old = filled(kept.folder("j000001").path)
    (old / "checkpoints/step-1").write_text("x")
    arguments = [database.url, str(state_dir), str(database.password_file or ""), step]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert kept.numbers() == [1, 2, 3, 4, 5]
    assert await kept.retention().remove_batch() == 1
    assert kept.numbers() == [2, 3, 4, 5]
    assert [path.name for path in sorted(old.rglob("*"))] == ["checkpoints", "step-1"]


def test_what_is_not_malletrains_stays(tmp_path: Path) -> None:
    folder = filled(tmp_path / "j000001")
    (folder / "checkpoints/step-1").write_text("x")
    (folder / "logs/tensorboard").mkdir()
    (folder / "logs/tensorboard/events.log").write_text("x")
    (folder / "logs/notes.txt").write_text("x")
    (folder / "model.pt").write_text("x")
    (folder / "compiled/x86_64-0/fxgraph").mkdir(parents=True)
    (folder / "compiled/x86_64-0/fxgraph/code.py").write_text("x")
    JobFolder(folder).remove_own_files()
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert left == ["checkpoints/step-1", "logs/notes.txt", "logs/tensorboard/events.log", "model.pt"]
    JobFolder(folder).remove_own_files()
    JobFolder(tmp_path / "j000002").remove_own_files()


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = filled(tmp_path / "outside")
    whole = sorted(outside.rglob("*"))
    folder = tmp_path / "j000001"
    folder.mkdir()
    (folder / "logs").symlink_to(outside / "logs")
    (folder / "checkpoints").symlink_to(outside / "checkpoints")
    (folder / "compiled").symlink_to(outside)
    (folder / job_folder.SUPERVISOR_LOG).symlink_to(outside / job_folder.SUPERVISOR_LOG)
    (folder / job_folder.LAUNCH_FILE).mkdir()
    (folder / "stop-requests").mkdir()
    (folder / "stop-requests/1").symlink_to(outside / job_folder.LAUNCH_FILE)
    JobFolder(folder).remove_own_files()
    (tmp_path / "j000002").symlink_to(outside)
    JobFolder(tmp_path / "j000002").remove_own_files()
    assert sorted(outside.rglob("*")) == whole


@needs_another_account
def test_a_folder_of_another_account_is_emptied_as_that_account(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    let_others_through(tmp_path)
    of_root = tmp_path / "of-root"
    of_root.mkdir(mode=0o700)
    (of_root / "secret.log").write_text("x")
    folder = filled(tmp_path / "j000001")
    (folder / "logs/n1.0.log").unlink()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    (folder / "saving").symlink_to(of_root)
    JobFolder(folder, account_named("nobody")).remove_own_files()
    assert (of_root / "secret.log").exists()
    assert [path.name for path in folder.iterdir()] == ["saving"]
    (folder / "saving").unlink()
    JobFolder(folder, account_named("nobody")).remove_own_files()
    assert not folder.exists()
