"""Unpacks an archive that may come from anywhere: nothing in it is believed before it is checked."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tarfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from malletrain.runtime.backup.manifest import MANIFEST, MAX_BYTES, Manifest, may_contain
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
        with tarfile.open(archive, mode="r:gz") as found:
            manifest = _manifest(archive, found)
            _unpack_files(archive, found, manifest, folder)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise InvalidInputError("FILE", f"an archive of `malletrain backup` that is whole ({error})") from error
    for service, revision in manifest.revisions.items():
        _check_database(archive, folder / f"{service}.sqlite", service, revision)
    return manifest


def _manifest(archive: Path, found: tarfile.TarFile) -> Manifest:
    member = found.next()
    if member is None or member.name != MANIFEST or not member.isreg() or member.size > _MAX_MANIFEST_BYTES:
        raise InvalidInputError("FILE", "an archive of `malletrain backup`", str(archive))
    try:
        manifest = Manifest.model_validate_json(_content(found, member).read(_MAX_MANIFEST_BYTES))
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


def _unpack_files(archive: Path, found: tarfile.TarFile, manifest: Manifest, folder: Path) -> None:
    missing = set(manifest.files)
    while (member := found.next()) is not None:
        if member.name not in missing or not member.isreg():
            raise InvalidInputError("FILE", "the files of its manifest, each once", member.name)
        missing.discard(member.name)
        entry = manifest.files[member.name]
        if member.size != entry.size or _write(_content(found, member), folder / member.name) != entry.sha256:
            raise InvalidInputError("FILE", f"an undamaged {member.name}: size or checksum differ", str(archive))
    if missing:
        raise InvalidInputError("FILE", f"an archive with {min(missing)}", str(archive))


def _content(found: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = found.extractfile(member)
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
