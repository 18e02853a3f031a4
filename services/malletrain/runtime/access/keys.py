"""The installation's key and the folder that it is in: readable by the services' account and by nobody else."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError

KEYS_FOLDER = "keys"
KEY_FILE = "token.key"
OWNER_FILE = "owner.token"
_MIN_BYTES = 32
_ID_LENGTH = 16
_GROUP_AND_OTHERS = 0o077
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def keys_folder(state_dir: Path) -> Path:
    """The folder of keys and tokens in a state folder."""
    return state_dir / KEYS_FOLDER


def owner_file(state_dir: Path) -> Path:
    """Path of the owner's token, which the services keep valid."""
    return keys_folder(state_dir) / OWNER_FILE


def make_keys_folder(state_dir: Path) -> Path:
    """The folder of keys and tokens; made if there is none.

    Raises:
        InvalidInputError: it can't be made, is another user's, or is open to others.
    """
    folder = keys_folder(state_dir)
    try:
        private_folder(folder)
    except OSError as error:
        raise InvalidInputError("state_dir", f"a folder that can be written ({error})", str(state_dir)) from error
    return folder


def private_folder(folder: Path) -> None:
    """Have a folder that only we can enter.

    Raises:
        InvalidInputError: it is no folder, is another user's, or is open to others.
        OSError: it can't be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidInputError("state_dir", f"a folder {folder}")
    _check_private(folder, status)


def load_key(state_dir: Path) -> bytes:
    """The key of an installation; made if there is none. If several processes make it at once, all get the same.

    Raises:
        InvalidInputError: it can't be made or used.
    """
    path = make_keys_folder(state_dir) / KEY_FILE
    try:
        if not path.exists():
            make_private(path, _random_hex(32) + "\n")
        key = read_private(path).strip()
    except OSError as error:
        raise InvalidInputError("state_dir", f"a folder with a usable key ({error})", str(state_dir)) from error
    if len(key) < _MIN_BYTES:
        raise InvalidInputError(str(path), f"a key of at least {_MIN_BYTES} bytes")
    return key


def _random_hex(count: int) -> str:
    """Random bytes, as two hexadecimal digits each."""
    import secrets  # those who only look for the owner's token start sooner without it

    return secrets.token_hex(count)


def installation_id(state_dir: Path) -> str:
    """Identifier of an installation: the same as long as its key is, and no secret.

    Raises:
        InvalidInputError: there is no usable key, and none can be made.
    """
    import hmac  # as above

    return hmac.digest(load_key(state_dir), b"installation", "sha256").hex()[:_ID_LENGTH]


def read_private(path: Path) -> bytes:
    """Content of a file that only we can read.

    Raises:
        InvalidInputError: it is another user's, is open to others, or is no plain file.
        OSError: it can't be read.
    """
    descriptor = os.open(path, _READ)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError(str(path), "a plain file")
        _check_private(path, status)
        return file.read()


def make_private(path: Path, text: str) -> None:
    """Make a file that only we can read, unless there is one already: of those who make it at once, the first wins.

    Raises:
        OSError: it can't be made.
    """
    temporary = path.with_name(f".{path.name}.{_random_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - of a descriptor
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(temporary, path)
    temporary.unlink()


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise InvalidInputError(str(path), f"a file of the account that runs the services (uid {os.geteuid()})")
    if status.st_mode & _GROUP_AND_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise InvalidInputError(str(path), f"access for its owner only (mode {mode & 0o700:o})", f"mode {mode:o}")
