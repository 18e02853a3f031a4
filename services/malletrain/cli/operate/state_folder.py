"""The state folder of an installation: made where it is missing, and used by one program at a time."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from malletrain.cli.shared.settings import AllSettings, check_state_folder
from malletrain.common.files import make_state_folder
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.runtime.settings_file import UP_LOCK


def prepare_state_folder(settings: AllSettings) -> None:
    """Make the state folder where it is missing.

    Raises:
        InvalidInputError: it can't be made, or others could have changed what is in it.
    """
    try:
        make_state_folder(settings.state_dir)
    except OSError as error:
        expected = f"a folder that is there or can be made ({error.strerror})"
        raise InvalidInputError("state_dir", expected, str(settings.state_dir)) from error
    check_state_folder(settings.state_dir)


@contextmanager
def lock_state_folder(state_dir: Path) -> Iterator[None]:
    """Lock a state folder for one `malletrain up`, or one restore.

    Raises:
        MalleTrainError: it is locked already.
    """
    with (state_dir / UP_LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MalleTrainError(f"another `malletrain up` runs on {state_dir}, or a restore") from None
        yield
