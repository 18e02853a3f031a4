"""From settings to a source."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from malletrain.runtime.access.credentials import ServiceCredential
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.scavenger.idle_trace import Trace, window
from malletrain.scavenger.machine.slow_nodes import SpeedTold
from malletrain.scavenger.node_traits import facts_by_node
from malletrain.scavenger.settings import ScavengerSettings
from malletrain.scavenger.sources.base import NodeSource
from malletrain.scavenger.sources.mixed import MixedSource
from malletrain.scavenger.sources.placed import PlacedSource, paths_of
from malletrain.scavenger.sources.schedulers.settings import PbsSettings, SlurmSettings
from malletrain.scavenger.sources.trace import StaticSource, TraceSource
from malletrain.scavenger.state_file import TRACE_ORIGIN, ScavengerStateFile
from malletrain.scavenger.telemetry.metrics import ReclaimTimer
from malletrain.scavenger.trace_files import read_trace


def build_source(
    section: ScavengerSettings,
    settings: Settings,
    state_file: ScavengerStateFile,
    clock: Clock,
    credential: ServiceCredential | None = None,
    reclaim_timer: ReclaimTimer = lambda *_: None,
    speed_told: SpeedTold = lambda *_: None,
) -> NodeSource:
    """The source that the settings name, with the topology that they say.

    Args:
        section: Settings of the Scavenger.
        settings: Common settings.
        state_file: Keeps over a restart what a source must not forget.
        clock: Wall clock.
        credential: What is shown to JobManager by a source that holds nodes.
        reclaim_timer: Told how long each step of giving nodes back takes.
        speed_told: Told how fast nodes are that are held.

    Raises:
        InvalidInputError: a setting or the trace can't be used.
    """
    known = section.nodes if section.source == "static" else None
    paths = paths_of(section.topology, known) if section.topology else None
    if section.source == "static":
        source = _static_source(section, clock)
    elif section.source == "trace":
        source = _trace_source(section, settings.state_dir, state_file, clock)
    else:
        source = _scheduler_source(section, settings, state_file, clock, credential, reclaim_timer, speed_told)
    return source if paths is None else PlacedSource(source, paths)


def _static_source(section: ScavengerSettings, clock: Clock) -> NodeSource:
    if not section.nodes:
        raise InvalidInputError("scavenger.nodes", "at least one node for the static source")
    where = "scavenger.node_traits", "scavenger.nodes"
    facts = facts_by_node(section.node_traits, section.nodes, section.gpu_memory_mib, *where)
    return StaticSource(section.nodes, clock, facts)


def _trace_source(
    section: ScavengerSettings, state_dir: Path, state_file: ScavengerStateFile, clock: Clock
) -> NodeSource:
    if section.trace is None:
        raise InvalidInputError("scavenger.trace", "the path of a trace, as the source is a trace")
    trace = _section_of(_read("scavenger.trace", section.trace), section)
    origin = _origin(section, section.trace, state_dir, state_file, clock)
    # After a graceful end the next start begins the replay anew.
    return TraceSource(trace, clock, origin, section.speed, on_close=lambda: state_file.try_write(TRACE_ORIGIN, {}))


def _read(setting: str, path: Path) -> Trace:
    if not path.is_file():
        raise InvalidInputError(setting, "the path of a trace that is there", str(path))
    return read_trace(path)


def _scheduler_source(
    section: ScavengerSettings,
    settings: Settings,
    state_file: ScavengerStateFile,
    clock: Clock,
    credential: ServiceCredential | None,
    reclaim_timer: ReclaimTimer,
    speed_told: SpeedTold,
) -> NodeSource:
    # The parsers' libraries take time to load, and other sources don't need them.
    from malletrain.scavenger.acquisition.demand import JobManagerDemand
    from malletrain.scavenger.acquisition.held_source import build_held_source
    from malletrain.scavenger.sources.schedulers.commands import run_command
    from malletrain.scavenger.sources.schedulers.pbs import pbs_source
    from malletrain.scavenger.sources.schedulers.slurm import slurm_source

    def build(
        scheduler: str, of_scheduler: SlurmSettings | PbsSettings, open_source: Callable[..., NodeSource]
    ) -> NodeSource:
        watched = partial(
            open_source, of_scheduler, clock, run_command, state_file=state_file, gpu_memory_mib=section.gpu_memory_mib
        )
        hold = of_scheduler.hold
        if not hold.held:
            return watched()
        demand = JobManagerDemand(settings.peer("job_manager"), credential)
        return build_held_source(
            *(scheduler, hold, watched, settings, section.debounce_seconds, clock, demand, reclaim_timer),
            section.node_check,
            of_scheduler.gpu_share.nice if of_scheduler.units == "gpus" else None,
            speed_told,
        )

    if section.source == "slurm":
        return build("slurm", section.slurm, slurm_source)
    if section.source == "pbs":
        return build("pbs", section.pbs, pbs_source)
    of_slurm, of_pbs = section.slurm.hold, section.pbs.hold
    if of_slurm.held and of_pbs.held and of_slurm.agents_address == of_pbs.agents_address:
        field = "scavenger.pbs.hold.agents_address"
        raise InvalidInputError(field, "another address than scavenger.slurm.hold's", of_pbs.agents_address)
    return MixedSource([build("slurm", section.slurm, slurm_source), build("pbs", section.pbs, pbs_source)])


def past_lengths(section: ScavengerSettings) -> list[float]:
    """Lengths of the fragments of the history file in wall-clock seconds, in the order in which they ended.

    Raises:
        InvalidInputError: the file can't be read as a trace.
    """
    if section.history_path is None:
        return []
    speed = section.speed if section.source == "trace" else 1.0
    ended = sorted(
        _read("scavenger.history_path", section.history_path).fragments, key=lambda fragment: fragment.idle_until_s
    )
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


def _origin(
    section: ScavengerSettings, path: Path, state_dir: Path, state_file: ScavengerStateFile, clock: Clock
) -> float:
    """When second 0 of the replay is, in seconds since the epoch: as before a kill if the replay is the same, else now.

    Raises:
        InvalidInputError: the state folder can't be written to.
    """
    replayed = _describe_replay(section, path)
    known = state_file.section(TRACE_ORIGIN)
    origin = known.get("origin_unix_seconds")
    if section.resume and known.get("key") == replayed and isinstance(origin, int | float) and origin <= clock.time():
        return float(origin)
    now = clock.time()
    try:
        state_file.write(TRACE_ORIGIN, {"key": replayed, "origin_unix_seconds": now})
    except OSError as error:
        raise InvalidInputError("state_dir", f"a folder that can be written to ({error})", str(state_dir)) from error
    return now


def _describe_replay(section: ScavengerSettings, path: Path) -> dict[str, Any]:
    """What is replayed: the file, as far as it can be told without reading it, and the settings."""
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
