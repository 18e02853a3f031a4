"""What feeds of one data set have measured, for the next one: a file in the folder of the fleet's feeds or the job.

It is only a help: what makes no sense is left out, and nothing depends on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.client.feeding.preprocessors import MOST
from malletrain.common import environment as env
from malletrain.common.files import make_private_folder, open_plain, write_atomically
from malletrain.common.job_folder import FEEDS_FOLDER
from malletrain.common.untrusted_json import parse_object

_MAX_BYTES = 4096
_NAME_BYTES = 8


@dataclass(frozen=True)
class RememberedRates:
    """What a feed has found.

    Attributes:
        processes: With how many processes it has prepared last; 0: not known.
        rates: Samples/s by number of processes.
    """

    processes: int = 0
    rates: Mapping[int, float] = field(default_factory=dict)


def memory_path(environ: Mapping[str, str], key: str) -> Path | None:
    """Where feeds of one data set remember that; None: outside of jobs, nowhere.

    Nodes may differ in their processors, so each has a file.

    Args:
        environ: Environment of the training that starts the feed.
        key: What the feed prepares; see `source.FeedSource`.
    """
    folder, job = environ.get(env.FEED_PEERS), environ.get(env.JOB_DIR)
    if not folder and not job:
        return None
    node = environ.get(env.NODE, "").partition("#")[0]
    name = hashlib.blake2b(node.encode(), digest_size=_NAME_BYTES).hexdigest()
    return (Path(folder) if folder else Path(str(job)) / FEEDS_FOLDER) / f"{key}.{name}.rates.json"


def remember(path: Path, found: RememberedRates) -> None:
    """Write it down.

    Raises:
        OSError: it can't be written.
    """
    with contextlib.suppress(FileExistsError):
        make_private_folder(path.parent)
    content = {"processes": found.processes, "rates": {str(n): round(rate, 3) for n, rate in found.rates.items()}}
    write_atomically(path, json.dumps(content), mode=0o600, exact=True, sync=False)


def recall(path: Path) -> RememberedRates:
    """What was written down; nothing if there is none, or it makes no sense."""
    try:
        with open_plain(path) as file:
            text = file.read(_MAX_BYTES + 1)
        return parse(text) if len(text) <= _MAX_BYTES else RememberedRates()
    except (OSError, ValueError):
        return RememberedRates()


def parse(text: bytes) -> RememberedRates:
    """Read what was written down.

    Raises:
        ValueError: it is none.
    """
    try:
        content = parse_object(text)
        processes, rates = content["processes"], {int(n): float(rate) for n, rate in content["rates"].items()}
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"rates: expected processes and rates, got {text[:60]!r}") from error
    if type(processes) is not int or not 0 <= processes <= MOST:
        raise ValueError(f"processes: expected 0 to {MOST}, got {processes!r}")
    for number, rate in rates.items():
        if not (1 <= number <= MOST and 0 < rate < math.inf):
            raise ValueError(f"rates: expected numbers above 0 for 1 to {MOST} processes, got {number}: {rate}")
    return RememberedRates(processes, rates)
