"""From settings to a source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.fragments import read_trace
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.reclaim_steps import ReclaimStep, unmeasured
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import Source
from malletrain.scavenger.sources.mixed import MixedSource
from malletrain.scavenger.sources.schedulers.holdings import Holdings
from malletrain.scavenger.sources.schedulers.settings import HoldSettings
from malletrain.scavenger.sources.static import StaticSource
from malletrain.scavenger.sources.trace import TraceSource
from malletrain.scavenger.state_file import read_state, write_state

ORIGIN_FILE = "scavenger-origin.json"


def build_source(
    section: ScavengerSettings,
    state_dir: Path,
    job_manager: str,
    clock: Clock,
    reclaim_step: ReclaimStep = unmeasured,
) -> Source:
    """The source that the settings name.

    Args:
        section: The settings.
        state_dir: Where a source keeps what it must not forget.
        job_manager: HOST:PORT of JobManager, which knows how many nodes there is work for.
        clock: Wall clock.
        reclaim_step: Told how long each step of giving nodes back has taken, in seconds.

    Raises:
        InvalidInputError: a setting or the trace can't be used.
    """
    if section.source == "static":
        if not section.nodes:
            raise InvalidInputError("scavenger.nodes", "at least one node for the static source")
        return StaticSource(section.nodes, clock)
    if section.source in ("slurm", "pbs", "slurm+pbs"):
        return _scheduler_source(section, state_dir, job_manager, clock, reclaim_step)
    if section.trace is None:
        raise InvalidInputError("scavenger.trace", "the path of a trace, as the source is a trace")
    trace = _section_of(read_trace(section.trace), section)
    file = state_dir / ORIGIN_FILE
    origin = _origin(section, section.trace, file, clock)
    return TraceSource(trace, clock, origin, section.speed, on_close=lambda: file.unlink(missing_ok=True))


def _scheduler_source(
    section: ScavengerSettings, state_dir: Path, job_manager: str, clock: Clock, reclaim_step: ReclaimStep
) -> Source:
    # The parsers' libraries take time to load, which those who need none of them are spared.
    from malletrain.scavenger.acquisition.build import hold_nodes
    from malletrain.scavenger.acquisition.demand import Demand
    from malletrain.scavenger.sources.schedulers.pbs import pbs_source
    from malletrain.scavenger.sources.schedulers.slurm import slurm_source

    def slurm() -> Source:
        def watched(holdings: Holdings | None = None) -> Source:
            return slurm_source(section.slurm, clock, holdings=holdings, memory=state_dir / "scavenger-slurm.json")

        return hold("slurm", section.slurm.hold, watched) if section.slurm.hold.held else watched()

    def pbs() -> Source:
        def watched(holdings: Holdings | None = None) -> Source:
            return pbs_source(section.pbs, clock, holdings=holdings, memory=state_dir / "scavenger-pbs.json")

        return hold("pbs", section.pbs.hold, watched) if section.pbs.hold.held else watched()

    def hold(scheduler: str, how: HoldSettings, watched: Callable[[Holdings], Source]) -> Source:
        demand = Demand(job_manager)
        return hold_nodes(scheduler, how, watched, demand, state_dir, section.debounce_seconds, clock, reclaim_step)

    if section.source == "slurm":
        return slurm()
    if section.source == "pbs":
        return pbs()
    ours, theirs = section.slurm.hold, section.pbs.hold
    if ours.held and theirs.held and ours.agents_address == theirs.agents_address:
        field = "scavenger.pbs.hold.agents_address"
        raise InvalidInputError(field, "another address than scavenger.slurm.hold's", theirs.agents_address)
    return MixedSource([slurm(), pbs()])


def past_lengths(section: ScavengerSettings) -> list[float]:
    """Lengths of the fragments of the history file in wall-clock seconds, in the order in which they ended.

    Raises:
        InvalidInputError: the file can't be read as a trace.
    """
    if section.history_path is None:
        return []
    speed = section.speed if section.source == "trace" else 1.0
    ended = sorted(read_trace(section.history_path).fragments, key=lambda fragment: fragment.idle_until_s)
    return [fragment.length_s / speed for fragment in ended]


def _section_of(trace: Trace, section: ScavengerSettings) -> Trace:
    if not section.trace_nodes and not section.start_s and not section.duration_s:
        return trace
    if section.start_s >= trace.duration_s:
        raise InvalidInputError("scavenger.start_s", f"below the trace's {trace.duration_s:g} s", section.start_s)
    if section.trace_nodes > len(trace.nodes):
        raise InvalidInputError("scavenger.trace_nodes", f"at most {len(trace.nodes)}", section.trace_nodes)
    rest_s = trace.duration_s - section.start_s
    duration_s = min(section.duration_s, rest_s) if section.duration_s else rest_s
    return window(trace, section.start_s, duration_s, section.trace_nodes or None)


def _origin(section: ScavengerSettings, path: Path, file: Path, clock: Clock) -> float:
    """When second 0 of the replay is: that of the life before where it replayed the same, else now.

    Raises:
        InvalidInputError: the state folder can't be written to.
    """
    key = _key(section, path)
    known = read_state(file)
    origin = known.get("origin_unix_seconds")
    if section.resume and known.get("key") == key and isinstance(origin, int | float) and origin <= clock.time():
        return float(origin)
    now = clock.time()
    try:
        write_state(file, {"key": key, "origin_unix_seconds": now})
    except OSError as error:
        raise InvalidInputError("state_dir", f"a folder that can be written to ({error})", str(file.parent)) from error
    return now


def _key(section: ScavengerSettings, path: Path) -> dict[str, Any]:
    status = path.stat()
    return {
        "path": str(path.resolve()),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "speed": section.speed,
        "start_s": section.start_s,
        "duration_s": section.duration_s,
        "trace_nodes": section.trace_nodes,
    }
