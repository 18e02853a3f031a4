"""Reads job sets and scaling tables."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from malletrain.allocator.problem.allocation_problem import JobDemand
from malletrain.job_manager.machine.admission import MAX_BURST_BUFFER_GB
from malletrain.model.job_value import LINEAR_VALUE, SpeedValue, goodput_curve
from malletrain.model.node_needs import MAX_AMOUNTS, NO_NEEDS, NeedError, NodeNeeds, check_needs
from malletrain.model.scaling import ScalingPoint
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.job_values import parse_value

JOB_COLUMNS = ("job", "model", "submit_s", "scale_up_s", "scale_down_s", "min_nodes", "max_nodes", "samples")
NEED_COLUMNS = ("gpu", "gpu_memory_mib", "gpus", "cores", "memory_mib", "constraint", "pool", "excluded_nodes")
"""Columns that a job set may have: the fields of `NodeNeeds`; nodes with blanks between."""
SCALING_COLUMNS = ("model", "nodes", "samples_per_s")
Curves = dict[str, tuple[ScalingPoint, ...]]


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """One elastic job of a replay.

    Attributes:
        id: Identifier.
        model: Name of its model; jobs of one model have the same scaling curve.
        submit_s: When it is submitted, in seconds from the trace's second 0.
        scale_up_s: R_up, stall of a growth in seconds.
        scale_down_s: R_down, stall of a shrink in seconds.
        min_nodes: Smallest scale in nodes.
        max_nodes: Largest scale in nodes.
        samples: Samples that it has to process.
        curve: Its scaling curve.
        owner: Name of the user who submits it.
        burst_buffer_gb: Burst buffer that it holds from admission to its end, in GB.
        boot_s: How long new workers boot before a growth, while the others train on, in seconds. The fast engine takes
            no notice of it.
        value: What its speed is worth.
        needs: What it needs of each of its nodes. Only the services engine can tell nodes apart.
    """

    id: str
    model: str
    submit_s: float
    scale_up_s: float
    scale_down_s: float
    min_nodes: int
    max_nodes: int
    samples: float
    curve: tuple[ScalingPoint, ...]
    owner: str = ""
    burst_buffer_gb: int = 0
    boot_s: float = 0.0
    value: SpeedValue = LINEAR_VALUE
    needs: NodeNeeds = NO_NEEDS

    def demand(self) -> JobDemand:
        """The job as part of an allocation problem; of a deadline nothing is in it, since that depends on the time.

        Of goodput what is declared is in it: no training tells anything here.
        """
        up, down, value = self.scale_up_s, self.scale_down_s, self.value.curve
        if self.value.goodput is not None:
            value = goodput_curve(self.value.goodput, None, self.min_nodes)
        return JobDemand(self.id, self.min_nodes, self.max_nodes, self.curve, up, down, value=value)

    def free(self) -> ReplayJob:
        """The job for the zero-cost bound: no stalls, nothing to boot, any node, no burst buffer to wait for."""
        return replace(self, scale_up_s=0.0, scale_down_s=0.0, burst_buffer_gb=0, boot_s=0.0, needs=NO_NEEDS)

    def with_costs(self, factor: float) -> ReplayJob:
        """The job with its stalls multiplied by a factor (BFTrainer, Fig. 16)."""
        return replace(self, scale_up_s=self.scale_up_s * factor, scale_down_s=self.scale_down_s * factor)


@dataclass(frozen=True)
class Workload:
    """Jobs to replay.

    Attributes:
        jobs: In the order of submission, at least one.
        title: What to call them.
        repeats: Whether they begin again until the trace ends: only how they scale matters, not how many there are.
    """

    jobs: tuple[ReplayJob, ...]
    title: str
    repeats: bool = False


def read_job_set(jobs: Path, scaling: Path) -> tuple[ReplayJob, ...]:
    """Read a job set (CSV `job,model,submit_s,…`) with its scaling table (CSV `model,nodes,samples_per_s`).

    A job set may have the column `owner`; without it all jobs are one owner's. It may have the column
    `burst_buffer_gb`; without it no job asks for any. It may have the column `boot_s`; without it nothing boots. It may
    have the column `value`, with values as `malletrain submit --value` takes them; deadlines count from the submission.
    It may have columns of `NEED_COLUMNS`, what a job needs of each of its nodes; an empty field asks for nothing.

    Returns:
        The jobs in the order of their submission; equal times keep the file's order.

    Raises:
        InvalidInputError: a file is not valid; the error names file, line and column.
    """
    rows = list(_rows(jobs, JOB_COLUMNS))
    curves = read_scaling(scaling)
    seen: dict[str, int] = {}
    job_set = []
    for line, row in rows:
        job = _job(f"{jobs}:{line}", row, curves, scaling)
        if job.id in seen:
            raise InvalidInputError(f"{jobs}:{line}: job", f"each job once (line {seen[job.id]} has it too)", job.id)
        seen[job.id] = line
        job_set.append(job)
    if not job_set:
        raise InvalidInputError(f"{jobs}:2", "at least one job, got none")
    return tuple(sorted(job_set, key=lambda job: job.submit_s))


def read_scaling(path: Path) -> Curves:
    """Read a scaling table: samples/s by model and nodes.

    Raises:
        InvalidInputError: the file is not valid; the error names file, line and column.
    """
    points: dict[str, dict[int, float]] = {}
    for line, row in _rows(path, SCALING_COLUMNS):
        at = f"{path}:{line}"
        nodes = int(_number(at, row, "nodes", "a whole number, at least 0", lambda value: value.is_integer()))
        rate = _number(at, row, "samples_per_s", "samples/s, at least 0")
        if nodes == 0 and rate != 0:
            raise InvalidInputError(f"{at}: samples_per_s", "0 at 0 nodes", rate)
        curve = points.setdefault(_text(at, row, "model"), {})
        if nodes in curve:
            raise InvalidInputError(f"{at}: nodes", "each scale of a model once", nodes)
        curve[nodes] = rate
    for model, curve in points.items():
        if not any(nodes > 0 for nodes in curve):
            raise InvalidInputError(str(path), f"a row above 0 nodes for model {model}")
        if not any(rate > 0 for rate in curve.values()):
            raise InvalidInputError(f"{path}: samples_per_s", f"a rate above 0 at one scale at least of model {model}")
    return {model: tuple(ScalingPoint(n, curve[n]) for n in sorted(curve)) for model, curve in points.items()}


def _job(at: str, row: dict[str, str], curves: Curves, scaling: Path) -> ReplayJob:
    model = _text(at, row, "model")
    if model not in curves:
        raise InvalidInputError(f"{at}: model", f"a model with rows in {scaling}", model)
    smallest, largest = (
        int(_number(at, row, name, "a whole number, at least 1", lambda value: value.is_integer() and value >= 1))
        for name in ("min_nodes", "max_nodes")
    )
    if largest < smallest:
        raise InvalidInputError(f"{at}: max_nodes", f"at least min_nodes ({smallest})", largest)
    if smallest > curves[model][-1].nodes:
        most = curves[model][-1].nodes
        raise InvalidInputError(f"{at}: min_nodes", f"at most {most}, the last scale of {model} in {scaling}", smallest)
    return ReplayJob(
        id=_text(at, row, "job"),
        model=model,
        submit_s=_number(at, row, "submit_s", "seconds, at least 0"),
        scale_up_s=_number(at, row, "scale_up_s", "seconds, at least 0"),
        scale_down_s=_number(at, row, "scale_down_s", "seconds, at least 0"),
        min_nodes=smallest,
        max_nodes=largest,
        samples=_number(at, row, "samples", "samples, above 0", lambda value: value > 0),
        curve=curves[model],
        owner=row.get("owner", "").strip(),
        burst_buffer_gb=_burst_buffer(at, row),
        boot_s=_number(at, row, "boot_s", "seconds, at least 0") if "boot_s" in row else 0.0,
        value=_value(f"{at}: value", row.get("value", "")),
        needs=_needs(at, row),
    )


def _value(at: str, text: str) -> SpeedValue:
    value = parse_value(text, at)
    if value.deadline is not None and not value.deadline.after_submission:
        raise InvalidInputError(at, "a deadline after the submission, such as deadline=24h: traces have no dates", text)
    return value


def _burst_buffer(at: str, row: dict[str, str]) -> int:
    if "burst_buffer_gb" not in row:
        return 0
    most = float(MAX_BURST_BUFFER_GB)
    expected = f"whole GB, 0 to {MAX_BURST_BUFFER_GB}"
    return int(_number(at, row, "burst_buffer_gb", expected, lambda gb: gb.is_integer() and gb <= most))


def _needs(at: str, row: dict[str, str]) -> NodeNeeds:
    values: dict[str, Any] = {}
    for name in NEED_COLUMNS:
        text = row.get(name, "").strip()
        if not text:
            continue
        if name in MAX_AMOUNTS:
            values[name] = int(_number(at, row, name, "a whole number, at least 0", lambda value: value.is_integer()))
        else:
            values[name] = tuple(text.split()) if name == "excluded_nodes" else text
    needs = NodeNeeds(**values)
    try:
        check_needs(needs)
    except NeedError as error:
        raise InvalidInputError(f"{at}: {error.field}", error.expected, error.got) from error
    return needs


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise InvalidInputError(f"{path}:1", f"the columns {','.join(columns)}; {missing[0]} is missing")
            for row in reader:
                if None in row or None in row.values():
                    raise InvalidInputError(f"{path}:{reader.line_num}", f"{len(reader.fieldnames or ())} columns")
                yield reader.line_num, row
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(str(path), f"a readable CSV file ({error})") from error
    except csv.Error as error:
        raise InvalidInputError(str(path), f"CSV ({error})") from error


def _text(at: str, row: dict[str, str], name: str) -> str:
    value = row[name].strip()
    if not value:
        raise InvalidInputError(f"{at}: {name}", "a name", row[name])
    return value


def _number(
    at: str, row: dict[str, str], name: str, expected: str, also: Callable[[float], bool] = lambda _: True
) -> float:
    try:
        value = float(row[name])
    except ValueError:
        raise InvalidInputError(f"{at}: {name}", expected, row[name]) from None
    if not (math.isfinite(value) and value >= 0 and also(value)):
        raise InvalidInputError(f"{at}: {name}", expected, row[name])
    return value
