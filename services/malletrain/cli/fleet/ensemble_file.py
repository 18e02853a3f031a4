"""Reads and checks ensembles: a FleetProblem in protobuf-JSON form, or a TOML file with a section for each member."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import typer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from malletrain.cli.fleet.policies import FleetPolicy
from malletrain.cli.shared.message_file import read_message, read_text
from malletrain.fleet.assignment import GpuAssignment
from malletrain.fleet.flotilla import Flotilla
from malletrain.fleet.lifecycle import FleetRun, FlotillaRun
from malletrain.fleet.problem import BeyondPeak, EnsembleModel, FleetPlanner, FleetProblem, Pace, RateTolerance
from malletrain.fleet.rates import ProfilePlan, RateTable, scaled_rates
from malletrain.fleet.sharing import of_flotillas, of_others
from malletrain.runtime.config import first_fault
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import beyond_peak_of, check_paces, is_feed, pace_of
from malletrain.v1 import fleet_pb2


def problem_from_proto(message: fleet_pb2.FleetProblem) -> FleetProblem:
    """The problem of a message; its numbers are not checked.

    Raises:
        InvalidInputError: an enum has an unknown value, or there are two tolerances.
    """
    check_paces(message)
    return FleetProblem(
        models=tuple(EnsembleModel(model.id, tuple(model.rates), model.epochs) for model in message.models),
        gpus=message.gpus,
        gpus_per_node=message.gpus_per_node,
        samples_per_epoch=message.samples_per_epoch,
        tolerance=_tolerance(message),
        active_share=message.active_share if message.HasField("active_share") else 0.8,
        checkpoint_seconds=message.checkpoint_seconds,
        preprocess_rate=message.preprocess_rate,
        pace=pace_of(message.pace),
        beyond_peak=beyond_peak_of(message.beyond_peak),
        name=message.name,
    )


def _tolerance(message: fleet_pb2.FleetProblem) -> RateTolerance:
    if not message.HasField("rate_tolerance"):
        return RateTolerance(share=message.rate_tolerance_share)
    if message.rate_tolerance_share:
        raise InvalidInputError("rate_tolerance_share", "nothing beside rate_tolerance", message.rate_tolerance_share)
    return RateTolerance(message.rate_tolerance)


def plan_to_proto(
    problem: FleetProblem, table: RateTable, planner: FleetPlanner, flotilla: Flotilla, assignment: GpuAssignment
) -> fleet_pb2.FleetPlan:
    """Members that train first by a planner as a message."""
    rates = dict(zip(flotilla.members, flotilla.rates(table), strict=True))
    preprocessing = of_flotillas(problem) if planner is FleetPlanner.FLEET else of_others(problem)
    paces = preprocessing.paces(rates)
    return fleet_pb2.FleetPlan(
        members=_placements(problem, flotilla.members, assignment.gpus),
        orders_tried=assignment.orders_tried,
        score=assignment.score,
        pace=min(paces.values()),
    )


def run_to_proto(problem: FleetProblem, run: FleetRun) -> fleet_pb2.FleetRun:
    """A run as a message."""
    return fleet_pb2.FleetRun(
        seconds=run.seconds,
        flotillas=[_flotilla(problem, flotilla) for flotilla in run.flotillas],
        end_seconds={model.id: end for model, end in zip(problem.models, run.ends_s, strict=True)},
        waiting_gpu_seconds=run.waiting_gpu_seconds,
        unassigned_gpu_seconds=run.unassigned_gpu_seconds,
    )


def profile_to_proto(profile: ProfilePlan) -> fleet_pb2.FleetProfile:
    """The short trainings as a message."""
    return fleet_pb2.FleetProfile(
        ma=profile.span,
        mb=profile.anchor,
        mt=profile.max_gpus,
        trainings=profile.trainings,
        gpu_trainings=profile.gpu_trainings,
    )


def _flotilla(problem: FleetProblem, run: FlotillaRun) -> fleet_pb2.Flotilla:
    return fleet_pb2.Flotilla(
        members=_placements(problem, run.members, run.gpus),
        score=run.score,
        start_seconds=run.start_s,
        end_seconds=run.end_s,
        completed=[problem.models[member].id for member in run.completed],
    )


def _placements(
    problem: FleetProblem, members: Sequence[int], gpus: Sequence[Sequence[int]]
) -> list[fleet_pb2.MemberPlacement]:
    return [
        fleet_pb2.MemberPlacement(model_id=problem.models[member].id, gpu_indices=own)
        for member, own in zip(members, gpus, strict=True)
    ]


FileArgument = Annotated[
    Path, typer.Argument(help="The ensemble: a FleetProblem in protobuf-JSON form, or a file NAME.toml.")
]
GpusOption = Annotated[
    int | None, typer.Option(min=1, help="Number of GPUs, not more than in the file; default: as in the file.")
]


def _checked_feed(feed: str) -> str:
    if feed and not is_feed(feed):
        raise ValueError("expected MODULE:FUNCTION, or nothing")
    return feed


def _checked_word(word: str) -> str:
    if not word:
        raise ValueError("expected a word that is not empty")
    return word


@dataclass(frozen=True)
class Ensemble:
    """What a file says."""

    problem: FleetProblem
    planner: FleetPolicy


class NeedsSection(BaseModel):
    """Section `[fleet.needs]`: what each node must have; names as of the options of `submit`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    gpu: str = ""
    gpu_memory: str | None = Field(default=None, alias="gpu-memory")
    gpus: int | None = None
    cores: int | None = None
    memory: str | None = None
    constraint: str = ""
    pool: str = ""
    exclude: list[str] = Field(default_factory=list, max_length=256)


class FleetSection(BaseModel):
    """Section `[fleet]`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = ""
    project: str = ""
    planner: Literal["auto", "fleet", "makespan", "list", "milp"] = "auto"
    max_nodes: int = Field(ge=1)
    gpus_per_node: int = Field(default=1, ge=1)
    samples_per_epoch: float
    rate_tolerance: float = Field(default=0.11, gt=0)
    active_share: float = 0.8
    checkpoint_seconds: float = 0.0
    preprocess_rate: float = 0.0
    pace: Literal["lockstep", "own"] = "lockstep"
    beyond_peak: Literal["avoid", "allow"] = "avoid"
    feed: Annotated[str, AfterValidator(_checked_feed)] = ""
    feed_across_nodes: bool = True
    backend: Literal["", "horovod", "torchrun", "command"] = ""
    environment: dict[str, str] = Field(default_factory=dict)
    needs: NeedsSection = Field(default_factory=NeedsSection)


class MemberSection(BaseModel):
    """A section `[[model]]`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    command: list[Annotated[str, AfterValidator(_checked_word)]] = Field(default_factory=list)
    batch_per_worker: int | None = Field(default=None, ge=1)
    max_epochs: int
    rates: list[float] = Field(default_factory=list)
    weight: float = 1.0
    environment: dict[str, str] = Field(default_factory=dict)


class EnsembleToml(BaseModel):
    """The file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    fleet: FleetSection
    model: list[MemberSection]


def read_ensemble(path: Path, gpus: int | None = None) -> Ensemble:
    """Read and check an ensemble.

    Args:
        path: The file.
        gpus: GPUs in place of those of the file, not more; None: as in the file.

    Raises:
        InvalidInputError: the file can't be read, or a field is wrong; the error names file and field.
    """
    toml = path.suffix == ".toml"
    content = _read_toml(path) if toml else read_message(path, fleet_pb2.FleetProblem())
    try:
        if isinstance(content, EnsembleToml):
            ensemble = _of_toml(content)
        else:
            ensemble = Ensemble(problem_from_proto(content), FleetPolicy.FLEET)
        validate(ensemble.problem)
    except InvalidInputError as error:
        raise error.at(f"{path}: {_toml_field(error.field) if toml else error.field}") from None
    if gpus is None:
        return ensemble
    if gpus > ensemble.problem.gpus:
        raise InvalidInputError("--gpus", f"at most {ensemble.problem.gpus}, as many as {path} has", gpus)
    return replace(ensemble, problem=replace(ensemble.problem, gpus=gpus))


def read_members(path: Path) -> EnsembleToml:
    """Read and check an ensemble that is to be trained: each member has a command, and may have no rates.

    Raises:
        InvalidInputError: the file can't be read, or a field is wrong; the error names file and field.
    """
    if path.suffix != ".toml":
        raise InvalidInputError(str(path), "a file NAME.toml, with a command for each member")
    content = _read_toml(path)
    rated = [one if one.rates else one.model_copy(update={"rates": [1.0]}) for one in content.model]
    try:
        validate(_of_toml(content.model_copy(update={"model": rated})).problem)
    except InvalidInputError as error:
        raise error.at(f"{path}: {_toml_field(error.field)}") from None
    for index, member in enumerate(content.model):
        if not member.command:
            raise InvalidInputError(f"{path}: model[{index}].command", "a program with its arguments", "none")
    return content


def _read_toml(path: Path) -> EnsembleToml:
    try:
        return EnsembleToml.model_validate(tomllib.loads(read_text(path)))
    except tomllib.TOMLDecodeError as error:
        raise InvalidInputError(str(path), f"TOML ({error})") from None
    except pydantic.ValidationError as error:
        place, expected, got = first_fault(error)
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
        raise InvalidInputError(f"{path}: {field}", expected, got) from None


def _of_toml(content: EnsembleToml) -> Ensemble:
    fleet = content.fleet
    problem = FleetProblem(
        models=tuple(EnsembleModel(one.name, tuple(one.rates), one.max_epochs) for one in content.model),
        gpus=fleet.max_nodes * fleet.gpus_per_node,
        gpus_per_node=fleet.gpus_per_node,
        samples_per_epoch=fleet.samples_per_epoch,
        tolerance=RateTolerance(share=fleet.rate_tolerance),
        active_share=fleet.active_share,
        checkpoint_seconds=fleet.checkpoint_seconds,
        preprocess_rate=fleet.preprocess_rate,
        pace=Pace(fleet.pace),
        beyond_peak=BeyondPeak(fleet.beyond_peak),
        name=fleet.name,
    )
    return Ensemble(problem, FleetPolicy(fleet.planner))


def _toml_field(field: str) -> str:
    """What the TOML file calls a field of the problem."""
    if field.startswith("models"):
        return field.replace("models", "model", 1).replace(".id", ".name").replace(".epochs", ".max_epochs")
    return f"fleet.{ {'gpus': 'max_nodes', 'rate_tolerance_share': 'rate_tolerance'}.get(field, field) }"


MAX_GPUS = 100_000
_MAX_RATES = 1_000_000
"""Members times GPUs: a plan looks at each rate."""
_MAX_EPOCHS = 1_000_000
_MIN_RATE, _MAX_FIGURE = 1e-9, 1e12
"""Slowest rate in samples/s, and largest rate, tolerance or time: beyond, sums would not be exact."""


def validate(problem: FleetProblem) -> None:
    """Check a problem.

    Raises:
        InvalidInputError: the problem is not valid; the error names the field, e.g. `models[1].rates[2]`.
    """
    if not 1 <= problem.gpus <= MAX_GPUS:
        raise InvalidInputError("gpus", f"1 to {MAX_GPUS} GPUs", problem.gpus)
    _whole("gpus_per_node", problem.gpus_per_node, MAX_GPUS)
    _number("samples_per_epoch", problem.samples_per_epoch, above=0.0)
    _number("rate_tolerance", problem.tolerance.samples_per_second)
    _number("rate_tolerance_share", problem.tolerance.share)
    if not 0 <= problem.active_share <= 1:
        raise InvalidInputError("active_share", "a number from 0 to 1", problem.active_share)
    _number("checkpoint_seconds", problem.checkpoint_seconds)
    if problem.preprocess_rate != 0:
        _rate("preprocess_rate", problem.preprocess_rate, "0, or samples/s")
    if not problem.models:
        raise InvalidInputError("models", "at least one member", "none")
    if len(problem.models) * problem.gpus > _MAX_RATES:
        most = _MAX_RATES // len(problem.models)
        raise InvalidInputError("gpus", f"at most {most} GPUs with {len(problem.models)} members", problem.gpus)
    seen: dict[str, int] = {}
    for index, model in enumerate(problem.models):
        _check_model(f"models[{index}]", model)
        if model.id in seen:
            raise InvalidInputError(
                f"models[{index}].id", f"each member once (models[{seen[model.id]}] has it too)", model.id
            )
        seen[model.id] = index
        _check_tail(f"models[{index}].rates", model, problem)


def _check_model(field: str, model: EnsembleModel) -> None:
    if not model.id.strip() or not model.id.isprintable():
        raise InvalidInputError(f"{field}.id", "a name of printable characters", model.id)
    _whole(f"{field}.epochs", model.epochs, _MAX_EPOCHS)
    if not model.rates:
        raise InvalidInputError(f"{field}.rates", "samples/s at 1, 2, 3… GPUs, at least at one", "none")
    for place, rate in enumerate(model.rates):
        _rate(f"{field}.rates[{place}]", rate, "samples/s")


def _check_tail(field: str, model: EnsembleModel, problem: FleetProblem) -> None:
    """Refuse a tail of Eq. 5 that would bring members with GPUs beyond their peak to a standstill."""
    if problem.beyond_peak is BeyondPeak.AVOID:
        return
    slowest = min(scaled_rates(model.rates, problem.gpus, problem.gpus_per_node))
    if slowest < _MIN_RATE:
        expected = f"rates with which Eq. 5 stays above {_MIN_RATE:g} samples/s up to {problem.gpus} GPUs"
        raise InvalidInputError(field, expected, slowest)


def _whole(field: str, value: int, maximum: int) -> None:
    if not 1 <= value <= maximum:
        raise InvalidInputError(field, f"a whole number from 1 to {maximum}", value)


def _number(field: str, value: float, above: float | None = None) -> None:
    if not (math.isfinite(value) and 0 <= value <= _MAX_FIGURE) or value == above:
        expected = f"at most {_MAX_FIGURE:g}"
        raise InvalidInputError(
            field, f"a number above 0, {expected}" if above == 0 else f"0 or more, {expected}", value
        )


def _rate(field: str, value: float, what: str) -> None:
    if not _MIN_RATE <= value <= _MAX_FIGURE:
        raise InvalidInputError(field, f"{what}, {_MIN_RATE:g} to {_MAX_FIGURE:g}", value)
