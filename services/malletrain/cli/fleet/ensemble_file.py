"""Reads ensembles: a FleetProblem in protobuf-JSON form, or a TOML file with a section for each member."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import typer
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from malletrain.cli.fleet.messages import problem_from_proto
from malletrain.cli.fleet.policies import FleetPolicy
from malletrain.cli.fleet.validation import validate
from malletrain.cli.shared.message_file import read_message, read_text
from malletrain.fleet.problem import BeyondPeak, EnsembleModel, FleetProblem, Pace, RateTolerance
from malletrain.runtime.config import first_fault
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.fleet_messages import is_feed
from malletrain.v1 import fleet_pb2

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
    """What a file says.

    Attributes:
        problem: The ensemble and its GPUs, checked.
        planner: Who divides the GPUs.
    """

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
            found = _of_toml(content)
        else:
            found = Ensemble(problem_from_proto(content), FleetPolicy.FLEET)
        validate(found.problem)
    except InvalidInputError as error:
        raise error.at(f"{path}: {_toml_field(error.field) if toml else error.field}") from None
    if gpus is None:
        return found
    if gpus > found.problem.gpus:
        raise InvalidInputError("--gpus", f"at most {found.problem.gpus}, as many as {path} has", gpus)
    return replace(found, problem=replace(found.problem, gpus=gpus))


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
