"""Runs a workload on the engine that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from malletrain.runtime.errors import InvalidInputError
from malletrain.selection.methods import SelectionMethod, check_method, methods_for
from malletrain.selection.problem import MachineResources
from malletrain.selection.rule import AdaptiveTradeOff, check_trade_off
from malletrain.simulator.batch.engine import Overrun, simulate
from malletrain.simulator.batch.policies import BatchPolicy, SelectionCounts, WindowSettings
from malletrain.simulator.batch.schedule import Schedule
from malletrain.simulator.batch.usage import UsageMetrics, usage_of
from malletrain.simulator.batch.window_engine import simulate_window
from malletrain.simulator.batch.workload import BatchWorkload

BASELINE = "baseline"
BASELINE_SETTINGS = WindowSettings(selection=None)


@dataclass(frozen=True)
class MethodRun:
    """What one method does with a workload.

    Attributes:
        name: The method, or `baseline`.
        counts: What the selection did.
        metrics: Metrics of the measured seconds.
    """

    name: str
    schedule: Schedule
    counts: SelectionCounts
    metrics: UsageMetrics


def machine_with(workload: BatchWorkload) -> MachineResources:
    """The workload's machine, also if it has nodes only."""
    return workload.resources or MachineResources(workload.nodes)


def schedule_of(
    workload: BatchWorkload,
    policy: BatchPolicy,
    settings: WindowSettings = BASELINE_SETTINGS,
    *,
    overrun: Overrun = Overrun.KILL,
    progress: Callable[[int], None] | None = None,
    clock: Callable[[], float] = lambda: 0.0,
) -> tuple[Schedule, SelectionCounts]:
    """Simulate a workload; without a window, and where only nodes count, on the faster engine.

    Raises:
        InvalidInputError: the method does not suit the machine, or an exact search was too long.
    """
    check_settings(workload, settings)
    plain = workload.resources is None and settings.selection is None and settings.backfill_depth is None
    if plain:
        return simulate(workload, policy, overrun=overrun, progress=progress), SelectionCounts()
    return simulate_window(workload, policy, settings, overrun=overrun, progress=progress, clock=clock)


def check_settings(workload: BatchWorkload, settings: WindowSettings) -> None:
    """Refuse settings that do not suit a machine, before anything runs.

    Raises:
        InvalidInputError: the method needs SSDs, the factor can't be used, or it can't adapt to this machine.
    """
    if settings.selection is None:
        return
    machine = machine_with(workload)
    check_method(settings.selection.method, machine)
    check_trade_off(settings.selection.trade_off or Fraction(0), machine)
    if settings.adaptive:
        AdaptiveTradeOff(machine)


def method_run(
    workload: BatchWorkload,
    policy: BatchPolicy,
    settings: WindowSettings,
    *,
    overrun: Overrun = Overrun.KILL,
    clock: Callable[[], float] = lambda: 0.0,
) -> MethodRun:
    """Simulate a workload and measure the schedule.

    Raises:
        InvalidInputError: as in `schedule_of`, or no job is submitted in the measured seconds.
    """
    done, counts = schedule_of(workload, policy, settings, overrun=overrun, clock=clock)
    name = BASELINE if settings.selection is None else settings.selection.method.value
    return MethodRun(name, done, counts, usage_of(done, machine_with(workload), workload.measured_s))


def all_settings(workload: BatchWorkload, settings: WindowSettings) -> tuple[WindowSettings, ...]:
    """Settings for the baseline and for each method that suits the machine, alike but for the method.

    Raises:
        InvalidInputError: there are no settings of a selection to vary.
    """
    selection = settings.selection
    if selection is None:
        raise InvalidInputError("select", "a method", None)
    methods: tuple[SelectionMethod, ...] = methods_for(machine_with(workload))
    return (
        replace(settings, selection=None),
        *(replace(settings, selection=replace(selection, method=method)) for method in methods),
    )
