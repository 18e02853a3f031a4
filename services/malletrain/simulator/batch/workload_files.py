"""Reads workloads of any kind: job logs in SWF or from Slurm, and job tables in CSV."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.batch.job_table import read_jobs
from malletrain.simulator.batch.machine import MachineSpec, read_machine
from malletrain.simulator.batch.slurm_jobs import is_slurm, read_slurm_workload
from malletrain.simulator.batch.workload import BatchWorkload, read_workload, workload_of_jobs
from malletrain.simulator.traces.row_counts import RowCounts


def read_any_workload(
    path: Path,
    *,
    spec: MachineSpec,
    processors_per_node: int | None = None,
    skip_too_large: bool = False,
    counts: RowCounts | None = None,
) -> BatchWorkload:
    """The jobs of a file: NAME.csv with NAME.json beside it, a log of Slurm, or one in the Standard Workload Format.

    Args:
        path: The file.
        spec: What is known of the machine; the file says the rest.
        processors_per_node: As in `workload_of`; only for logs.
        skip_too_large: Whether to skip jobs that ask for more than the machine has.
        counts: Counts rows of a log of Slurm that can't be used; None: more than a per cent of them is an error.

    Raises:
        InvalidInputError: a file is not valid, or a job asks for more than the machine has.
    """
    if path.suffix != ".csv" and is_slurm(path):
        if processors_per_node is not None:
            raise InvalidInputError("--processors-per-node", "nothing with a log of Slurm, whose sizes are nodes")
        return read_slurm_workload(path, spec, skip_too_large=skip_too_large, counts=counts)
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
    return workload_of_jobs(path, read_jobs(path), spec.nodes, spec, skip_too_large=skip_too_large)


def _over(known: MachineSpec, given: MachineSpec) -> MachineSpec:
    """What is given counts; the rest is what the file says."""
    return replace(
        known,
        **{name: value for name in MachineSpec.__dataclass_fields__ if (value := getattr(given, name)) is not None},
    )
