"""What the Scavenger keeps over a restart, in one JSON file of the state folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from malletrain.common.files import write_atomically

STATE_FILE = "scavenger.json"
RECLAIM_COOLDOWNS = "reclaim_cooldowns"
"""Section: until when each reclaimed node stays out, in seconds since the epoch."""
DRAINS = "drains"
"""Section: what operators have drained."""
QUARANTINE = "quarantine"
"""Section: failures of work by node, and until when nodes are quarantined for them."""
NODE_SPEEDS = "node_speeds"
"""Section: the newest measures of how fast nodes are."""
NODE_NOTICES = "node_notices"
"""Section: by receiver, what the operator is still to be told of nodes, and was told."""
TRACE_ORIGIN = "trace_origin"
"""Section: which trace is replayed, and when its second 0 was."""
IDLE_AGES = "idle_ages_"
"""Section, with the name of the scheduler after it: since when nodes are idle, and how long idle fragments lasted."""

_EARLIER_FILES = {
    RECLAIM_COOLDOWNS: "scavenger-holds.json",
    TRACE_ORIGIN: "scavenger-origin.json",
    f"{IDLE_AGES}slurm": "scavenger-slurm.json",
    f"{IDLE_AGES}pbs": "scavenger-pbs.json",
}
"""Versions up to 0.1.0 had a file for each section. They are read where the one file does not exist, then removed."""


class ScavengerStateFile:
    """Sections of JSON that outlive the process. Only one Scavenger uses a state folder at a time."""

    def __init__(self, state_dir: Path) -> None:
        """Read what is there; what can't be read is logged and left out.

        Args:
            state_dir: The folder.
        """
        self._path = state_dir / STATE_FILE
        self._earlier = {name: state_dir / file for name, file in _EARLIER_FILES.items()}
        self._log = structlog.get_logger(__name__)
        self._sections: dict[str, Any] = (
            self._read(self._path)
            if self._path.exists()
            else {name: section for name, path in self._earlier.items() if (section := self._read(path))}
        )

    def section(self, name: str) -> dict[str, Any]:
        """The content of a section; empty where there is none."""
        section = self._sections.get(name)
        return dict(section) if isinstance(section, dict) else {}

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a section. After a kill the file has either the old content or the new.

        Raises:
            OSError: the file can't be written.
        """
        self._sections[name] = dict(content)
        write_atomically(self._path, json.dumps(self._sections), mode=0o600, sync=False)
        for path in self._earlier.values():
            path.unlink(missing_ok=True)
        self._earlier = {}

    def try_write(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a section, where a restart that does not know it does little harm: a failure is logged."""
        try:
            self.write(name, content)
        except OSError as error:
            self._log.error("state could not be stored", section=name, path=str(self._path), error=str(error))

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            section = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            self._log.warning("state file ignored", path=str(path), error=str(error))
            return {}
        return section if isinstance(section, dict) else {}
