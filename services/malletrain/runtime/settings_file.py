"""Which file of settings is read, for the services and for all who call them: needs the standard library only."""

from __future__ import annotations

import os
from pathlib import Path

from malletrain.common.environment import PREFIX
from malletrain.common.trusted_files import UntrustedFileError, check_trusted
from malletrain.runtime.errors import InvalidInputError

CONFIG_FILE = "malletrain.toml"
CONFIG_VARIABLE = f"{PREFIX}CONFIG_FILE"
"""Names the file of settings where the option --config does not."""
AUTHORITY_FILE = "ca.pem"
"""Name of the certificate in the state folder by which callers know the services."""
UP_LOCK = "up.lock"
"""Name of the file in the state folder that `malletrain up` holds a lock on as long as it runs."""
SERVICES = ("scavenger", "monitor", "job_manager", "profiler", "allocator")
DEFAULT_ADDRESSES = {
    "scavenger": "127.0.0.1:7701",
    "allocator": "127.0.0.1:7702",
    "job_manager": "127.0.0.1:7703",
    "monitor": "127.0.0.1:7704",
    "profiler": "127.0.0.1:7705",
}
"""Where each service listens unless settings say otherwise, as HOST:PORT."""


def default_state_folder() -> Path:
    """Folder of databases, job folders and logs unless settings name one."""
    return Path.home() / ".local/state/malletrain"


def settings_file(config_file: Path | None = None) -> Path | None:
    """The file that `load_settings` reads; None: there is none.

    Raises:
        InvalidInputError: it is named and not there, or it is that of the working directory and others could have
            written it.
    """
    variable = os.environ.get(CONFIG_VARIABLE, "")
    for field, named in (("--config", config_file), (CONFIG_VARIABLE, Path(variable) if variable else None)):
        if named is not None:
            if not named.is_file():
                raise InvalidInputError(field, "a readable TOML file", str(named))
            return named
    return _own_config()


def _own_config() -> Path | None:
    """The file of the working directory, whoever works there: settings name programs, and where tokens are sent.

    Raises:
        InvalidInputError: others could have written it.
    """
    path = Path(CONFIG_FILE)
    try:
        check_trusted(path)
    except FileNotFoundError:
        return None
    except UntrustedFileError as error:
        expected = f"a file that nobody else can write: {error.strerror}. If it is meant, name it: --config {path}"
        raise InvalidInputError(f"./{path}", expected) from error
    except OSError as error:
        raise InvalidInputError(f"./{path}", f"a readable TOML file ({error.strerror})") from error
    return path
