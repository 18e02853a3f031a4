"""Folders for supervisors' sockets outside of the state folder, whose path may be too long or closed to owners.

A name that can be foreseen could be taken by anybody in a folder such as /tmp. So each folder has a random name, which
is kept in the state folder; where its folder is not there any more, or is somebody else's, another one is made.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from malletrain.common.files import make_state_folder, write_atomically

_RUN = Path("/run")
_RECORDS = {0o700: "sockets.path", 0o711: "sockets-of-owners.path"}
_PREFIX = "malletrain-"


def socket_folder(state_dir: Path, mode: int) -> Path:
    """The folder, which is made if there is none.

    Args:
        state_dir: State folder of the installation, which nobody else can enter.
        mode: Permissions of the folder: 0o700, or 0o711 where owners of jobs must pass through.

    Raises:
        OSError: it can't be made.
    """
    record = state_dir / _RECORDS[mode]
    try:
        known = Path(record.read_text(encoding="utf-8"))
    except (FileNotFoundError, UnicodeDecodeError):
        known = None
    if known is not None and is_own_folder(known):
        known.chmod(mode)
        return known
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_above()))
    made.chmod(mode)
    make_state_folder(state_dir)
    write_atomically(record, str(made), mode=0o600)
    return made


def earlier_socket_folder(state_dir: Path) -> Path:
    """Where versions before had these sockets: supervisors of such a version serve there until they end."""
    mark = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getuid()}-{mark}"


def is_own_folder(path: Path) -> bool:
    """Whether a path is that of a folder of this user, and no link."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _above() -> Path:
    """Root's own folder where there is one: some systems clear /tmp of what has not been used for days."""
    return _RUN if os.getuid() == 0 and os.access(_RUN, os.W_OK) else Path(tempfile.gettempdir())
