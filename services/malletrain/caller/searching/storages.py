"""Where studies are kept: a file of the user, or a database or storage that Optuna knows."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from malletrain.common.mounts import unescape
from malletrain.runtime.errors import InvalidInputError, PreconditionError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

SQLITE_ENDINGS = (".db", ".sqlite", ".sqlite3")
JOURNAL_ENDINGS = (".journal", ".log")
_EXPECTED = (
    f"a file whose name ends in {', '.join((*SQLITE_ENDINGS, *JOURNAL_ENDINGS))}, a database's URL such as "
    "sqlite:///studies.db, or a storage of Optuna"
)
_SHARED = frozenset(
    (
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "ceph", "afs", "panfs", "pvfs2", "orangefs"),
        *("9p", "fuse.sshfs", "fuse.glusterfs", "fuse.juicefs", "wekafs"),
    )
)
"""File systems of several machines, on which SQLite's locks can't be relied on."""
_PRIVATE = 0o600


def default_file(environment: Mapping[str, str], mountinfo: str) -> Path:
    """The file of studies in the user's folder: SQLite, and a journal on a shared file system.

    Args:
        environment: Variables of the process.
        mountinfo: What is mounted where, as in /proc/self/mountinfo.
    """
    data = environment.get("XDG_DATA_HOME") or ""
    folder = Path(data) if data.startswith("/") else Path(environment.get("HOME") or "~").expanduser() / ".local/share"
    ending = "journal" if file_system_of(folder.resolve(), mountinfo) in _SHARED else "db"
    return folder / "malletrain" / f"studies.{ending}"


def file_system_of(path: Path, mountinfo: str) -> str:
    """The kind of the file system that a path is on, e.g. `ext4`; empty: not known.

    Args:
        path: An absolute path.
        mountinfo: What is mounted where.
    """
    found, kind = -1, ""
    for line in mountinfo.splitlines():
        words, _, ending = line.partition(" - ")
        fields, kinds = words.split(" "), ending.split(" ")
        if len(fields) < 5:
            continue
        point = Path(unescape(fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= found:
            found, kind = len(point.parts), kinds[0]
    return kind


def open_storage(storage: object, environment: Mapping[str, str] = os.environ) -> tuple[str | BaseStorage, Path | None]:
    """A storage for Optuna, and the file that it is; None: no file of ours.

    Args:
        storage: A path, a URL, or a storage of Optuna; None: the file of the user's folder.
        environment: Variables of the process.

    Raises:
        InvalidInputError: it is none, or its folder can't be made.
    """
    from optuna.storages import BaseStorage

    if isinstance(storage, BaseStorage) or (isinstance(storage, str) and "://" in storage):
        return storage, None
    if storage is None:
        path = default_file(environment, Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
        _make_private_folder(path.parent)
    elif isinstance(storage, str | os.PathLike) and str(storage):
        path = Path(storage).absolute()
    else:
        raise InvalidInputError("storage", _EXPECTED, storage)
    if not path.parent.is_dir():
        raise InvalidInputError("storage", "a file in a folder that exists", str(path))
    if path.suffix in SQLITE_ENDINGS:
        _touch(path)
        return f"sqlite:///{path}", path
    if path.suffix in JOURNAL_ENDINGS:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        _touch(path)
        return JournalStorage(JournalFileBackend(str(path))), path
    raise InvalidInputError("storage", _EXPECTED, str(storage))


@contextmanager
def sole_driver(file: Path | None, study: str) -> Iterator[None]:
    """Be the one process that drives a study, as far as its file tells; the kernel ends that with the process.

    Args:
        file: The file of studies; None: there is none, and nothing is looked at.
        study: Name of the study.

    Raises:
        PreconditionError: another process does.
    """
    if file is None:
        yield
        return
    mark = hashlib.sha256(study.encode()).hexdigest()[:12]
    lock = file.with_name(f".{file.name}.{mark}.lock")
    _touch(lock)
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreconditionError(f"another process drives the study {study} of {file}") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without locks
                raise
        yield
    finally:
        os.close(descriptor)


def _make_private_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        expected = f"a folder for studies that can be made ({error.strerror})"
        raise InvalidInputError("storage", expected, str(folder)) from None


def _touch(path: Path) -> None:
    """Make the file, which only its user can read: parameters may say more than its user wants."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE))
    except OSError as error:
        raise InvalidInputError("storage", f"a file that can be written ({error.strerror})", str(path)) from None
