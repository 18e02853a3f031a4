"""`python -m malletrain.cli.journal.what_if`: one what-if of the dashboard's page Week, as a process of its own.

What is asked for comes by standard input, in JSON, the token with it: lists of processes show none. Lines of JSON go to
standard output: shares of the way, then the comparison. The past is read from the services once, and kept in a file for
the next what-if.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from malletrain.allocator.problem.forward_time import ForwardPolicy
from malletrain.cli.journal.reading import read_from_services
from malletrain.cli.journal.replay_options import options_in_force
from malletrain.cli.shared.settings import load
from malletrain.runtime.access.credentials import FixedToken
from malletrain.runtime.errors import InvalidInputError, MalleTrainError
from malletrain.simulator.journal.conversion import what_if
from malletrain.simulator.journal.record import Journal
from malletrain.simulator.replay.options import ReplayOptions, ReplayPolicy

_PR_SET_PDEATHSIG = 1
_TOLD_EVERY = 0.02
_MIN_S = 1.0


def main() -> None:
    """Replay what is asked for; exit 1 with one line on standard error if that can't be done."""
    request = json.load(sys.stdin)
    _limit(request["seconds"], request["bytes"])
    try:
        comparison = _compare(request)
    except MalleTrainError as error:
        sys.exit(str(error))
    except MemoryError:
        sys.exit(f"it needs more than {request['bytes'] / 2**30:.1f} GiB of memory")
    print(json.dumps({"found": comparison}), flush=True)


def _limit(seconds: float, max_bytes: int) -> None:
    """Stand back for everything else, and end with the dashboard, or when it has taken too much."""
    os.nice(19)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))
    with suppress(OSError):  # where memory is short, this process goes before the dashboard
        Path("/proc/self/oom_score_adj").write_text("1000")


def _compare(request: dict[str, Any]) -> dict[str, Any]:
    journal = _past(Path(request["past"]), request["token"], request["config"])
    end = min(request["until"], journal.end_unix)
    begin = max(journal.begin_unix, end - request["days"] * 86400.0)
    if end - begin < _MIN_S:
        raise InvalidInputError("past", "a time of which something is recorded")
    options = _options(request, end - begin)
    comparison = asdict(what_if(journal, begin, end, options, _telling(end - begin)))
    if begin > end - request["days"] * 86400.0:
        hours = (end - begin) / 3600
        comparison["notes"] = [f"The idle set is known for {hours:.1f} h of this time only.", *comparison["notes"]]
    return comparison


def _options(request: dict[str, Any], duration_s: float) -> ReplayOptions:
    """The settings in force, but for what is asked for."""
    policy, present = ReplayPolicy(request["policy"]), options_in_force(load(_file(request["config"])))
    return replace(
        present,
        duration_s=duration_s,
        forward_s=request["forward_s"],
        forward_policy=ForwardPolicy(request["forward_policy"]),
        max_parallel=request["max_parallel"],
        policy=policy,
        # Only our own policy knows limits of owners.
        max_nodes_per_owner=present.max_nodes_per_owner if policy is ReplayPolicy.MILP else 0,
    )


def _past(path: Path, token: str, config: str | None) -> Journal:
    """The past as it was read before; else from the services. The file is the dashboard's, in a folder of its own."""
    if path.exists():
        with path.open("rb") as file:
            kept_journal: Journal = pickle.load(file)
        return kept_journal
    journal = read_from_services(load(_file(config)), FixedToken(token))
    partial = path.with_suffix(".part")
    with partial.open("wb") as file:
        pickle.dump(journal, file)
    partial.rename(path)
    return journal


def _file(config: str | None) -> Path | None:
    return Path(config) if config else None


def _telling(duration_s: float) -> Callable[[float], None]:
    told = 0.0

    def tell(second: float) -> None:
        nonlocal told
        if second / duration_s - told >= _TOLD_EVERY:
            told = second / duration_s
            print(json.dumps({"share": told}), flush=True)

    return tell


if __name__ == "__main__":
    main()
