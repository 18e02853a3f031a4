"""Which file of settings is read, where a setting stands in it, and which one was probably meant.

For the services and for all who call them: needs the standard library only.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+))*)\s*=""")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(?:\.|$)""")


def line_of(text: str, place: Sequence[int | str]) -> int | None:
    """The line of a TOML file where a setting stands, or else the table that it would be in; None: neither is there.

    Args:
        text: The file.
        place: Path of the setting, e.g. ("scavenger", "speed"); what is in a list has the line of the list.
    """
    names = [str(part) for part in place if isinstance(part, str)]
    table: list[str] = []
    nearest: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            table = _parts(header[1])
            full = table
        elif key := _KEY.match(line):
            full = table + _parts(key[1])
        else:
            continue
        if full and names[: len(full)] == full:
            nearest.setdefault(len(full), number)
    return nearest[max(nearest)] if nearest else None


def _parts(dotted: str) -> list[str]:
    return [quoted or single or bare for quoted, single, bare in _PART.findall(dotted)]


def variable_of(environment: Mapping[str, str], prefix: str, place: Sequence[int | str]) -> str | None:
    """The variable of the environment that sets something, as it is spelled there; None: none does."""
    names = [str(part).upper() for part in place if isinstance(part, str)]
    known = {name.upper(): name for name in environment}
    for length in range(len(names), 0, -1):
        if variable := known.get(prefix + "__".join(names[:length])):
            return variable
    return None


def place_in_words(
    environment: Mapping[str, str], prefix: str, place: Sequence[int | str], file: object, text: str
) -> str:
    """The variable, or the file and line, that a setting comes from; empty: neither is known.

    Args:
        environment: Variables of the process.
        prefix: What those begin with that are settings.
        place: Path of the setting.
        file: The TOML file, as it is called.
        text: What it says.
    """
    if variable := variable_of(environment, prefix, place):
        return variable
    line = line_of(text, place)
    return f"{file}:{line}" if line else ""


def nearest_key(model: type[Any], place: Sequence[int | str]) -> str | None:
    """The key that somebody may have meant by an unknown one; None: none is like it.

    Args:
        model: The settings, a model of pydantic, which those do without who only call services.
        place: Path of the unknown key.
    """
    *sections, wrong = (str(part) for part in place)
    known: Any = model
    for name in sections:
        field = known.model_fields.get(name) if known is not None else None
        kind = field.annotation if field is not None else None
        known = kind if isinstance(kind, type) and hasattr(kind, "model_fields") else None
    like = difflib.get_close_matches(wrong, known.model_fields, 1) if known is not None else []
    return like[0] if like else None
