"""What is backed up is restored, on either database; a bad archive or an interruption leaves nothing half."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from malletrain.allocator.history.plan_store import PlanStore
from malletrain.job_manager.storage.change import Change
from malletrain.job_manager.storage.store import JobStore
from malletrain.runtime.access.installation import open_installation
from malletrain.runtime.backup import restoring
from malletrain.runtime.backup.restoring import finish_restore, restore_backup, unpack
from malletrain.runtime.backup.writing import Manifest, write_backup
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.engine import open_engine
from malletrain.runtime.database.errors import SchemaVersionError
from malletrain.runtime.database.migrating import open_database
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.v1 import allocator_pb2
from tests.job_manager.harness import running
from tests.support.clocks import ManualClock
from tests.support.postgresql import Locate

CLOCK = ManualClock(1795313879.0)
MakeSettings = Callable[[str], Settings]


on_postgresql = pytest.mark.parametrize("locate", ["postgresql"], indirect=True)


@pytest.fixture
def make_settings(locate: Locate, tmp_path: Path) -> MakeSettings:
    """Settings of an installation with its own state folder; on PostgreSQL they share the database."""
    address = locate("monitor")

    def make(name: str) -> Settings:
        found = {"database_url": address.url, "database_password_file": address.password_file} if address.url else {}
        return Settings.model_validate({"state_dir": tmp_path / name, **found})

    return make


def use(settings: Settings) -> None:
    """What services leave behind: keys, jobs and a plan."""
    settings.state_dir.mkdir(mode=0o700)
    open_installation(settings, SystemClock()).owner_token().renew()
    store = JobStore(open_database(settings.database("job_manager")))
    machine = running("a b", spare="c")
    store.save(Change(tuple(machine.state.jobs.values()), machine.events, 7))
    PlanStore(open_database(settings.database("allocator")), 10).add(allocator_pb2.Plan(generation=7))
    (settings.state_dir / "scavenger.json").write_text('{"reclaim_cooldowns": {"n1": 5.0}}')
    (settings.state_dir / "jobs").mkdir()


def change_everything(settings: Settings) -> None:
    store = JobStore(open_database(settings.database("job_manager")))
    store.save(Change(running("x").state.jobs.values(), (), 99))
    (settings.state_dir / "keys" / "token.key").write_bytes(b"k" * 44)
    (settings.state_dir / "scavenger.json").write_text("{}")


def contents(settings: Settings) -> tuple[Any, ...]:
    """What an installation knows."""
    store = JobStore(open_database(settings.database("job_manager")))
    plans = PlanStore(open_database(settings.database("allocator")), 10)
    files = ("keys/token.key", "scavenger.json")
    kept = {name: (settings.state_dir / name).read_bytes() for name in files}
    return store.load(), [stored.event for stored in store.events(0, 1000, None)], plans.newest(), kept


def archive_of(settings: Settings, tmp_path: Path) -> Path:
    archive, _ = write_backup(settings, tmp_path / "backup.tar.gz", None, CLOCK)
    return archive


def test_a_backup_brings_everything_back(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings = make_settings("state")
    use(settings)
    before = contents(settings)
    (tmp_path / "malletrain.toml").write_text("log_level = 'debug'\n")
    archive, manifest = write_backup(settings, tmp_path, tmp_path / "malletrain.toml", CLOCK)
    assert archive.name == "malletrain-20261122T021759Z.tar.gz"
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert manifest.revisions == {"job_manager": "0002", "allocator": "0005"}
    change_everything(settings)
    with pytest.raises(InvalidInputError, match=r"state_dir: expected an empty installation, or --force"):
        restore_backup(settings, archive, False, CLOCK)
    _, replaced = restore_backup(settings, archive, True, CLOCK)
    assert contents(settings) == before
    assert replaced is not None
    assert (replaced / "keys" / "token.key").read_bytes() == b"k" * 44
    with closing(sqlite3.connect(replaced / "job_manager.sqlite")) as connection:
        (generation,) = connection.execute("SELECT value FROM counters WHERE name = 'plan_generation'").fetchone()
    assert generation == 99, "what was replaced is kept"
    assert stat.S_IMODE((settings.state_dir / "keys").stat().st_mode) == 0o700
    assert stat.S_IMODE((settings.state_dir / "keys" / "token.key").stat().st_mode) == 0o600
    assert (settings.state_dir / "jobs").is_dir(), "job folders stay"
    assert (settings.state_dir / "malletrain.restored.toml").read_text() == "log_level = 'debug'\n"
    store = JobStore(open_database(settings.database("job_manager")))
    store.save(Change((), running("c").events))
    assert len(store.events(0, 1000, None)) > len(before[1]), "the journal's numbers go on after the restored ones"


def test_a_backup_of_one_database_is_restored_into_the_other(make_settings: MakeSettings, tmp_path: Path) -> None:
    settings, plain = make_settings("state"), Settings(state_dir=tmp_path / "plain")
    use(plain)
    before = contents(plain)
    archive = archive_of(plain, tmp_path)
    settings.state_dir.mkdir()
    restore_backup(settings, archive, False, CLOCK)
    assert contents(settings) == before
    again = Settings(state_dir=tmp_path / "again")
    again.state_dir.mkdir()
    archive.unlink()
    restore_backup(again, archive_of(settings, tmp_path), False, CLOCK)
    assert contents(again) == before


def test_a_restore_that_is_interrupted_is_finished_later_and_nothing_starts_before(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings("state")
    use(settings)
    before = contents(settings)
    archive = archive_of(settings, tmp_path)
    change_everything(settings)
    moves = 0
    rename = Path.rename

    def interrupt(self: Path, target: Path) -> Path:
        nonlocal moves
        moves += 1
        if moves == stop_at:
            raise KeyboardInterrupt
        return rename(self, target)

    # At each of its renames in turn; each attempt goes on where the one before was interrupted.
    monkeypatch.setattr(Path, "rename", interrupt)
    stop_at = 1
    with pytest.raises(KeyboardInterrupt):
        restore_backup(settings, archive, True, CLOCK)
    for stop_at in range(2, 9):  # noqa: B007 - read by `interrupt`
        moves = 0
        with pytest.raises(MalleTrainError, match="restore --continue"):
            open_database(settings.database("job_manager"))
        try:
            finish_restore(settings)
        except KeyboardInterrupt:
            continue
        break
    assert not (settings.state_dir / "restore.new").exists()
    assert contents(settings) == before


@on_postgresql
def test_a_postgresql_transaction_that_fails_leaves_the_tables_as_they_were(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings("state")
    use(settings)
    archive = archive_of(settings, tmp_path)
    change_everything(settings)
    with open_database(settings.database("job_manager")).connect() as connection:
        before = connection.execute(text("SELECT * FROM counters")).all()

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(restoring, "copy_into", fail)
    with pytest.raises(OSError, match="no space"):
        restore_backup(settings, archive, True, CLOCK)
    shutil.rmtree(settings.state_dir / "restore.new")
    with open_database(settings.database("job_manager")).connect() as connection:
        assert connection.execute(text("SELECT * FROM counters")).all() == before


def test_a_backup_is_not_written_over_a_file(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path / "state")
    use(settings)
    archive_of(settings, tmp_path)
    with pytest.raises(InvalidInputError, match=r"FILE: expected a new file in a folder that exists"):
        archive_of(settings, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"state", "backup.tar.gz"}


def test_there_must_be_something_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="state_dir"):
        archive_of(Settings(state_dir=tmp_path / "state"), tmp_path)
    assert list(tmp_path.iterdir()) == []


@on_postgresql  # SQLite copies its own files
def test_a_copy_is_of_one_moment_while_others_write(
    make_settings: MakeSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings("state")
    use(settings)
    store = JobStore(open_database(settings.database("job_manager")))
    machine = running("a")
    written = 0

    def write_more(*_: object) -> None:
        nonlocal written
        written += 1
        if written <= 3:
            store.save(Change(tuple(machine.state.jobs.values()), machine.events, 100 + written))

    def open_and_listen(*arguments: Any) -> Any:
        engine = open_engine(*arguments)
        event.listen(engine, "after_cursor_execute", write_more)
        return engine

    monkeypatch.setattr("malletrain.runtime.backup.writing.open_engine", open_and_listen)
    archive = archive_of(settings, tmp_path)
    monkeypatch.undo()
    other = Settings(state_dir=tmp_path / "other")
    other.state_dir.mkdir()
    restore_backup(other, archive, False, CLOCK)
    found = JobStore(open_database(other.database("job_manager")))
    journal = found.events(0, 1000, None)
    generation = found.load().generation
    later = 0 if generation == 7 else generation - 100
    assert len(journal) == len(running("a b", spare="c").events) + later * len(machine.events)


# -- archives that are not to be trusted ---------------------------------------------------------------------------


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as found:
        return {member.name: (found.extractfile(member) or io.BytesIO()).read() for member in found}


def write_members(archive: Path, files: dict[str, bytes], special: tarfile.TarInfo | None = None) -> None:
    with tarfile.open(archive, "w:gz") as new:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
        if special is not None:
            new.addfile(special)


def with_manifest(files: dict[str, bytes], **changes: Any) -> dict[str, bytes]:
    """The same files, with a manifest that fits them."""
    given = Manifest.model_validate_json(files["manifest.json"]).model_dump()
    entries = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
        if name != "manifest.json"
    }
    manifest = Manifest.model_validate(given | {"files": entries} | changes)
    return files | {"manifest.json": manifest.model_dump_json().encode()}


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    settings = Settings(state_dir=tmp_path / "state")
    use(settings)
    return archive_of(settings, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../evil", "/etc/evil", "keys/../../evil", "keys/..", "keys/a/../b", "evil", "keys", "jobs/a", "keys/.x", ""],
)
def test_files_of_other_names_are_refused(archive: Path, tmp_path: Path, name: str) -> None:
    write_members(archive, with_manifest(members(archive) | {name: b"evil"}))
    with pytest.raises(InvalidInputError, match="names of files that a backup has"):
        unpack(archive, tmp_path / "new")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "added",
    [
        special("keys/link", tarfile.SYMTYPE, "/etc/passwd"),
        special("keys/link", tarfile.LNKTYPE, "manifest.json"),
        special("keys/pipe", tarfile.FIFOTYPE),
        special("keys/device", tarfile.CHRTYPE),
        special("keys/token.key", tarfile.REGTYPE),
        special("../evil", tarfile.REGTYPE),
    ],
    ids=lambda member: f"{member.name}-{member.type!r}",
)
def test_links_devices_and_what_is_not_in_the_manifest_are_refused(
    archive: Path, tmp_path: Path, added: tarfile.TarInfo
) -> None:
    write_members(archive, members(archive), added)
    with pytest.raises(InvalidInputError, match="the files of its manifest, each once"):
        unpack(archive, tmp_path / "new")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda files: files | {"scavenger.json": b'{"reclaim_cooldowns": {"n1": 6.0}}'}, "undamaged scavenger.json"),
        (lambda files: files | {"scavenger.json": b"x" * 1000}, "undamaged scavenger.json"),
        (lambda files: {name: text for name, text in files.items() if name != "scavenger.json"}, "with scavenger.json"),
        (lambda files: {name: text for name, text in files.items() if name != "manifest.json"}, "archive of"),
        (lambda files: files | {"manifest.json": b"{}"}, "manifest of this version"),
        (lambda files: files | {"manifest.json": b"["}, "manifest of this version"),
        (lambda files: with_manifest(files | {"job_manager.sqlite": b"x" * 5000}), "a sound database of job_manager"),
        (lambda files: with_manifest(files, revisions={"job_manager": "0001"}), "a revision for each database"),
        (lambda files: with_manifest(files, revisions={"a": "1", "allocator": "0001"}), "a revision for each"),
    ],
)
def test_damaged_archives_are_refused(
    archive: Path, tmp_path: Path, spoil: Callable[[dict[str, bytes]], dict[str, bytes]], message: str
) -> None:
    write_members(archive, spoil(members(archive)))
    settings = Settings(state_dir=tmp_path / "new")
    settings.state_dir.mkdir()
    with pytest.raises(InvalidInputError, match=message):
        restore_backup(settings, archive, False, CLOCK)
    assert list(settings.state_dir.iterdir()) == []
    restore_backup(settings, archive_of(Settings(state_dir=tmp_path / "state"), settings.state_dir), False, CLOCK)


def test_an_archive_of_a_later_version_is_refused(archive: Path, tmp_path: Path) -> None:
    later = {"job_manager": "0001", "allocator": "0009"}
    write_members(archive, with_manifest(members(archive), revisions=later))
    with pytest.raises(SchemaVersionError, match=r"revision 0009, and this version of MalleTrain knows up to 0005"):
        unpack(archive, tmp_path / "new")


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.9])
def test_a_part_of_an_archive_is_refused(archive: Path, tmp_path: Path, part: float) -> None:
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(part * len(whole))] if part else os.urandom(2000))
    with pytest.raises(InvalidInputError, match="FILE"):
        unpack(archive, tmp_path / "new")
