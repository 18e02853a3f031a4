"""What a receiver of notices has been told, across restarts of JobManager."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from malletrain.common.files import write_atomically
from malletrain.job_manager.notifications.notices import Waits

_MODE = 0o600


@dataclass(frozen=True)
class Told:
    """What a receiver has been told.

    Attributes:
        sequence: Number of the last row of the journal of which it was told, or need not be.
        waits: Jobs without nodes.
    """

    sequence: int
    waits: Waits = field(default_factory=Waits)


def read_told(path: Path) -> Told | None:
    """What the file says; None where there is none, or none that can be read: then only what is new is told."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        since = {str(job_id): float(time) for job_id, time in content["waiting_since"].items()}
        return Told(int(content["sequence"]), Waits(since, frozenset(map(str, content["told_of"]))))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        structlog.get_logger(__name__).warning("what was told is not known any more", file=str(path), error=str(error))
        return None


def write_told(path: Path, told: Told) -> None:
    """Write the file, completely or not at all.

    Raises:
        OSError: it can't be written.
    """
    content = {
        "sequence": told.sequence,
        "waiting_since": dict(told.waits.since),
        "told_of": sorted(told.waits.told),
    }
    write_atomically(path, json.dumps(content), mode=_MODE)
