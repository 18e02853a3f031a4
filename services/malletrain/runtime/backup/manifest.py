"""What an archive contains: its first member says it, and nothing else may be in it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

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
