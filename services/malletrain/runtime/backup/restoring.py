"""Puts a backup in place of what is there: completely, also where that is interrupted.

The archive may come from anywhere: nothing in it is believed before it is checked.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sqlite3
import tarfile
import zlib
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, MetaData, inspect, text

from malletrain.common.files import make_private_folder, sync_directory, write_atomically
from malletrain.runtime.backup.writing import (
    KEYS_FOLDER,
    MANIFEST,
    MAX_BYTES,
    SETTINGS_FILE,
    STATE_FILE,
    Manifest,
    may_contain,
)
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.copying import copy_from, copy_into
from malletrain.runtime.database.engine import open_engine
from malletrain.runtime.database.migrating import (
    PATIENT_SECONDS,
    RESTORE_FOLDER,
    RESTORE_MARKER,
    lock_schema,
    upgrade_database,
)
from malletrain.runtime.database.schema_history import SchemaHistory
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.settings_file import SERVICES

_MAX_MANIFEST_BYTES = 4 << 20
_CHUNK = 1 << 20


def unpack(archive: Path, folder: Path) -> Manifest:
    """Unpack an archive into an empty folder and check all of it.

    Only plain files are unpacked, of the names that a backup can have and of the sizes that its manifest states.

    Raises:
        InvalidInputError: it is no archive of `malletrain backup`, or damaged.
        SchemaVersionError: its tables are of a later version than this one.
    """
    try:
        with tarfile.open(archive, mode="r:gz") as tar:
            manifest = _manifest(archive, tar)
            _unpack_files(archive, tar, manifest, folder)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InvalidInputError("FILE", f"an archive of `malletrain backup` that is whole ({error})") from error
    for service, revision in manifest.revisions.items():
        _check_database(archive, folder / f"{service}.sqlite", service, revision)
    return manifest


def _manifest(archive: Path, tar: tarfile.TarFile) -> Manifest:
    member = tar.next()
    if member is None or member.name != MANIFEST or not member.isreg() or member.size > _MAX_MANIFEST_BYTES:
        raise InvalidInputError("FILE", "an archive of `malletrain backup`", str(archive))
    try:
        manifest = Manifest.model_validate_json(_content(tar, member).read(_MAX_MANIFEST_BYTES))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidInputError(f"FILE:{MANIFEST}", f"a manifest of this version ({place}: {first['msg']})") from None
    wrong = next((name for name in manifest.files if not may_contain(name)), None)
    if wrong is not None:
        raise InvalidInputError(f"FILE:{MANIFEST}", "names of files that a backup has", wrong)
    needed = {f"{service}.sqlite" for service in manifest.revisions}
    unknown = set(manifest.revisions).difference(SERVICES)
    if unknown or needed != {name for name in manifest.files if name.endswith(".sqlite") and "/" not in name}:
        raise InvalidInputError(f"FILE:{MANIFEST}", "a revision for each database", sorted(manifest.revisions))
    if sum(entry.size for entry in manifest.files.values()) > MAX_BYTES:
        raise InvalidInputError(f"FILE:{MANIFEST}", f"at most {MAX_BYTES} bytes in all")
    return manifest


def _unpack_files(archive: Path, tar: tarfile.TarFile, manifest: Manifest, folder: Path) -> None:
    missing = set(manifest.files)
    while (member := tar.next()) is not None:
        if member.name not in missing or not member.isreg():
            raise InvalidInputError("FILE", "the files of its manifest, each once", member.name)
        missing.discard(member.name)
        entry = manifest.files[member.name]
        if member.size != entry.size or _write(_content(tar, member), folder / member.name) != entry.sha256:
            raise InvalidInputError("FILE", f"an undamaged {member.name}: size or checksum differ", str(archive))
    if missing:
        raise InvalidInputError("FILE", f"an archive with {min(missing)}", str(archive))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None, "a plain file has content"
    return content


def _write(content: IO[bytes], target: Path) -> str:
    """Write a private file; returns its SHA-256."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digest = hashlib.sha256()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _check_database(archive: Path, file: Path, service: str, revision: str | None) -> None:
    SchemaHistory(service).check(revision, archive)
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            (answer,) = connection.execute("PRAGMA quick_check").fetchone()
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        raise InvalidInputError("FILE", f"a sound database of {service} ({answer})", str(archive))


_DATABASES = tuple(f"{service}.sqlite{ending}" for service in SERVICES for ending in ("", "-wal", "-shm"))
_FILES = (*_DATABASES, STATE_FILE, KEYS_FOLDER, SETTINGS_FILE)


class RestorePlan(BaseModel):
    """What is left to do once an archive is unpacked and checked.

    Attributes:
        services: Services of whose databases there is a copy.
        away: Names in the state folder that are moved away.
        put: Names in the unpacked archive that take their place.
        replaced: Name of the folder for what is moved away.
    """

    services: tuple[str, ...]
    away: tuple[str, ...]
    put: tuple[str, ...]
    replaced: str


def restore_backup(settings: Settings, archive: Path, force: bool, clock: Clock) -> tuple[Manifest, Path | None]:
    """Restore an installation. The services must not run, and the state folder must be locked.

    The archive is unpacked and checked beside what is there. Only then it takes its place, and until that is finished
    no service starts. Job folders and logs stay as they are. What is replaced is moved to a folder of its own.

    Args:
        settings: The installation.
        archive: What `write_backup` has written.
        force: Whether to replace an installation that is there.
        clock: For the name of the folder of what is replaced.

    Returns:
        What was restored, and where what was replaced lies now; None: there was nothing.

    Raises:
        InvalidInputError: the archive can't be used, or there is an installation and no `force`.
        SchemaVersionError: its tables are of a later version than this one.
        DatabaseUnavailableError: the PostgreSQL server does not answer. To be tried again.
    """
    state_dir = settings.state_dir
    present = [name for name in _FILES if (state_dir / name).exists()]
    if not force and (present or _has_tables(settings)):
        what = present[0] if present else "a table in PostgreSQL"
        raise InvalidInputError("state_dir", f"an empty installation, or --force: there is {what}", str(state_dir))
    folder = state_dir / RESTORE_FOLDER
    if folder.exists():
        shutil.rmtree(folder)
    make_private_folder(folder)
    try:
        manifest = unpack(archive, folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    databases = {f"{service}.sqlite" for service in manifest.revisions}
    unpacked = {path.name for path in folder.iterdir()}
    plan = RestorePlan(
        services=tuple(manifest.revisions),
        away=tuple(present),
        put=tuple(sorted(unpacked - databases if settings.database("job_manager").url else unpacked)),
        replaced=f"replaced-{datetime.fromtimestamp(clock.time(), UTC):%Y%m%dT%H%M%S.%fZ}",
    )
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync_directory(place)
    write_atomically(folder / RESTORE_MARKER, plan.model_dump_json(), mode=0o600)
    return manifest, finish_restore(settings)


def finish_restore(settings: Settings) -> Path | None:
    """Go on with a restore whose archive is unpacked and checked. It may be interrupted and repeated.

    Returns:
        Where what was replaced lies now; None if there was nothing.

    Raises:
        DatabaseUnavailableError: the PostgreSQL server does not answer. To be tried again.
    """
    state_dir, folder = settings.state_dir, settings.state_dir / RESTORE_FOLDER
    plan = RestorePlan.model_validate_json((folder / RESTORE_MARKER).read_text(encoding="utf-8"))
    replaced = state_dir / plan.replaced
    if settings.database("job_manager").url:
        _replace_tables(settings, folder, plan.services, replaced)
    for name in plan.away:
        if not (replaced / name).exists():
            _move_away(state_dir / name, replaced)
    for name in plan.put:
        if (folder / name).exists():
            # What an attempt to start the services has made meanwhile, such as keys.
            _move_away(state_dir / name, replaced)
            (folder / name).rename(state_dir / name)
    sync_directory(state_dir)
    # The marker first: without it, what is left of the folder means nothing.
    (folder / RESTORE_MARKER).unlink()
    shutil.rmtree(folder)
    return replaced if replaced.exists() else None


def _move_away(path: Path, folder: Path) -> None:
    if path.exists():
        make_private_folder(folder)
        name = path.name if not (folder / path.name).exists() else f"{path.name}.{secrets.token_hex(4)}"
        path.rename(folder / name)


def _has_tables(settings: Settings) -> bool:
    for service in SERVICES:
        address = settings.database(service)
        if not address.url:
            return False
        engine = open_engine(address)
        try:
            with engine.connect() as connection:
                if inspect(connection).get_table_names():
                    return True
        finally:
            engine.dispose()
    return False


def _replace_tables(settings: Settings, folder: Path, services: tuple[str, ...], replaced: Path) -> None:
    """Replace the tables of all services in PostgreSQL, in one transaction, after a copy."""
    for service in services:
        upgrade_database(DatabaseAddress(service, folder))
    engine = open_engine(settings.database("job_manager"), PATIENT_SECONDS)
    try:
        with engine.begin() as connection:
            for service in SERVICES:
                schema = settings.database(service).schema
                lock_schema(connection, schema)
                connection.execute(text("SELECT set_config('search_path', :schema, true)"), {"schema": schema})
                copy = replaced / f"{service}.sqlite"
                if not copy.exists() and inspect(connection).get_table_names():
                    make_private_folder(replaced)
                    copy_from(connection, copy)
                _drop_tables(connection)
                if service in services:
                    SchemaHistory(service).upgrade(connection)
                    copy_into(folder / f"{service}.sqlite", connection)
    finally:
        engine.dispose()


def _drop_tables(connection: Connection) -> None:
    metadata = MetaData()
    metadata.reflect(connection)
    metadata.drop_all(connection)
