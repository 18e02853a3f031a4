"""Makes a backup, also while the services run."""

from __future__ import annotations

import hashlib
import io
import os
import re
import secrets
import shutil
import tarfile
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import inspect

from malletrain.common.files import sync_directory
from malletrain.common.version import VERSION
from malletrain.runtime.backup.lock import during_backup
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.database.address import DatabaseAddress
from malletrain.runtime.database.copying import copy_from, copy_sqlite, sqlite_file
from malletrain.runtime.database.engine import open_engine
from malletrain.runtime.database.migrating import PATIENT_SECONDS
from malletrain.runtime.database.schema_history import revision_of
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.settings_file import SERVICES

MANIFEST = "manifest.json"
FORMAT = 1
SETTINGS_FILE = "malletrain.restored.toml"
"""The TOML file of settings, which is not put in place: it may lie anywhere, and be for another machine."""
STATE_FILE = "scavenger.json"
KEYS_FOLDER = "keys"
MAX_FILES = 10_000
MAX_BYTES = 1 << 40

_PART = r"[A-Za-z0-9_@%+=][A-Za-z0-9._@%+=-]{0,199}"
_NAME = re.compile(
    rf"({'|'.join(SERVICES)})\.sqlite|{re.escape(STATE_FILE)}|{re.escape(SETTINGS_FILE)}|{KEYS_FOLDER}(/{_PART}){{1,5}}"
)


class FileEntry(BaseModel):
    """A file of an archive: its size in bytes and its SHA-256."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int = Field(ge=0, le=MAX_BYTES)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """The first member of an archive.

    Attributes:
        format: Of the archive.
        version: Version of MalleTrain that wrote it.
        create_time: When, in UTC.
        revisions: Revision of the tables of each service that has any; None: of before there were revisions.
        files: The other members by name, as they lie in the state folder.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = Field(ge=FORMAT, le=FORMAT)
    version: str = Field(max_length=64)
    create_time: str = Field(max_length=64)
    revisions: dict[str, str | None] = Field(max_length=len(SERVICES))
    files: dict[str, FileEntry] = Field(max_length=MAX_FILES)


def may_contain(name: str) -> bool:
    """Whether a file of this name can be in an archive. Such a name never leads out of the state folder."""
    return _NAME.fullmatch(name) is not None and ".." not in PurePosixPath(name).parts


_IN_ORDER = ("allocator", "profiler", "monitor", "job_manager")
"""Who refers to something is copied before who knows it: all refer to jobs, which JobManager numbers."""


def write_backup(settings: Settings, target: Path, config: Path | None, clock: Clock) -> tuple[Path, Manifest]:
    """Write an archive of an installation. It is a secret: the installation's keys are in it.

    Args:
        settings: The installation.
        target: The archive, which must not exist, or a folder for one with the time in its name.
        config: TOML file of the settings; None: there is none.
        clock: Wall clock.

    Returns:
        The archive and what is in it.

    Raises:
        InvalidInputError: the target can't be used, or there is nothing to back up.
        DatabaseUnavailableError: a database does not answer.
        OSError, sqlite3.Error: something can't be read or written. No archive is left.
    """
    moment = datetime.fromtimestamp(clock.time(), UTC)
    if target.is_dir():
        target = target / f"malletrain-{moment:%Y%m%dT%H%M%SZ}.tar.gz"
    if target.exists() or not target.parent.is_dir():
        raise InvalidInputError("FILE", "a new file in a folder that exists", str(target))
    staging = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    staging.mkdir(mode=0o700)
    try:
        with during_backup(settings.state_dir):
            revisions = _gather(settings, staging, config)
        if not revisions:
            raise InvalidInputError("state_dir", "a state folder that services have used", str(settings.state_dir))
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            create_time=f"{moment:%Y-%m-%dT%H:%M:%SZ}",
            revisions=revisions,
            files={name: _entry(staging / name) for name in _names(staging)},
        )
        partial = staging / "archive"
        _write_archive(partial, staging, manifest)
        # Fails, unlike a rename, where another backup has made the same name meanwhile.
        target.hardlink_to(partial)
    finally:
        shutil.rmtree(staging)
    sync_directory(target.parent)
    return target, manifest


def _gather(settings: Settings, staging: Path, config: Path | None) -> dict[str, str | None]:
    """Copy all that belongs into the archive; returns the revisions of the databases."""
    revisions = {}
    for service in _IN_ORDER:
        copy = staging / f"{service}.sqlite"
        if copy_database(settings.database(service), copy):
            revisions[service] = _revision(copy)
    _copy_file(settings.state_dir / STATE_FILE, staging / STATE_FILE)
    # Last, so that a token which was revoked before the last database was copied stays so.
    keys = settings.state_dir / KEYS_FOLDER
    for path in sorted(keys.rglob("*")):
        name = path.relative_to(settings.state_dir).as_posix()
        if path.is_file() and not path.is_symlink() and may_contain(name):
            _copy_file(path, staging / name)
    if config is not None:
        _copy_file(config, staging / SETTINGS_FILE)
    return revisions


def copy_database(address: DatabaseAddress, copy: Path) -> bool:
    """Copy a service's tables into a new SQLite file, as they are at one moment; False if it has none yet.

    Raises:
        DatabaseUnavailableError: the database does not answer.
        OSError, sqlite3.Error, sqlalchemy.exc.SQLAlchemyError: it can't be copied.
    """
    if not address.url:
        if not address.file.exists():
            return False
        copy_sqlite(address.file, copy)
        return True
    engine = open_engine(address, PATIENT_SECONDS)
    try:
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            if not inspect(connection).get_table_names():
                return False
            copy_from(connection, copy)
            return True
    finally:
        engine.dispose()


def _revision(copy: Path) -> str | None:
    with sqlite_file(copy).connect() as connection:
        return revision_of(connection)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file, if it is there: it may vanish at any time."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        target.unlink(missing_ok=True)


def _names(staging: Path) -> list[str]:
    return sorted(path.relative_to(staging).as_posix() for path in staging.rglob("*") if path.is_file())


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        return FileEntry(size=path.stat().st_size, sha256=hashlib.file_digest(file, "sha256").hexdigest())


def _write_archive(path: Path, staging: Path, manifest: Manifest) -> None:
    text = manifest.model_dump_json(indent=1).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=6) as archive:
            _add(archive, MANIFEST, io.BytesIO(text), len(text))
            for name, entry in manifest.files.items():
                with (staging / name).open("rb") as content:
                    _add(archive, name, content, entry.size)
        file.flush()
        os.fsync(file.fileno())


def _add(archive: tarfile.TarFile, name: str, content: io.BufferedIOBase, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    archive.addfile(member, content)
