"""Reads workloads of either kind: job logs in SWF, and job tables in CSV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.job_table import read_jobs
from malletrain.simulator.batch.machine import MachineSpec, beyond, machine_of, read_machine
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload, Skipped, in_order, read_workload


def read_any_workload(
    path: Path,
    *,
    spec: MachineSpec,
    processors_per_node: int | None = None,
    skip_too_large: bool = False,
) -> BatchWorkload:
    """The jobs of a file: NAME.csv with NAME.json beside it, or a log in the Standard Workload Format.

    Args:
        path: The file.
        spec: What is known of the machine; the file says the rest.
        processors_per_node: As in `workload_of`; only for logs.
        skip_too_large: Whether to skip jobs that ask for more than the machine has.

    Raises:
        InvalidInputError: a file is not valid, or a job asks for more than the machine has.
    """
    if path.suffix != ".csv":
        return read_workload(
            path, nodes=spec.nodes, processors_per_node=processors_per_node, skip_too_large=skip_too_large, spec=spec
        )
    if processors_per_node is not None:
        raise InvalidInputError("--processors-per-node", "nothing with a job table, whose sizes are nodes")
    beside = path.with_suffix(".json")
    known = read_machine(beside, spec.nodes) if beside.exists() else MachineSpec()
    spec = _over(known, spec)
    if spec.nodes is None:
        raise InvalidInputError("nodes", f"the machine's size, here or in {beside.name} beside the table")
    resources = machine_of(spec.nodes, spec)
    kept, too_large = list[BatchJob](), 0
    for job in read_jobs(path):
        excess = beyond(job, resources)
        if job.nodes > spec.nodes:
            excess = "nodes", f"at most {spec.nodes} nodes, the size of the machine", job.nodes
        if excess and not skip_too_large:
            raise InvalidInputError(
                f"{path}:{job.line}: {excess[0]}", f"{excess[1]} (or skip jobs that are too large)", excess[2]
            )
        too_large += bool(excess)
        kept += [] if excess else [job]
    if not kept:
        raise InvalidInputError(str(path), "at least one job that fits on the machine")
    return BatchWorkload(
        in_order(kept),
        spec.nodes,
        skipped=Skipped(too_large=too_large),
        resources=resources,
        measured_s=spec.measured_s,
    )


def _over(known: MachineSpec, given: MachineSpec) -> MachineSpec:
    """What is given counts; the rest is what the file says."""
    return replace(
        known,
        **{name: value for name in MachineSpec.__dataclass_fields__ if (value := getattr(given, name)) is not None},
    )
