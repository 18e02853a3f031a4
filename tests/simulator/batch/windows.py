"""Workloads with burst buffer and SSDs for the tests."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import strategies as st

from malletrain.selection.problem import MachineResources
from malletrain.simulator.batch.workload import BatchJob, BatchWorkload
from tests.simulator.batch.workloads import lublin_like


@st.composite
def resource_workloads(draw: st.DrawFn) -> BatchWorkload:
    """Few jobs on few nodes, with burst buffer and mostly SSDs."""
    ssd = draw(st.booleans())
    small, large = draw(st.integers(1, 5)), draw(st.integers(1, 5)) if ssd else 0
    machine = MachineResources(small + large, draw(st.integers(0, 9)), large, 128 * ssd, 256 * ssd)
    rows, now_s = [], 0.0
    for number in range(1, draw(st.integers(1, 18)) + 1):
        now_s += draw(st.integers(0, 4))
        wants_large = ssd and draw(st.booleans())
        nodes = draw(st.integers(1, large if wants_large else small + large))
        gb = draw(st.integers(129, 256) if wants_large else st.integers(0, 128 * ssd))
        run_s, estimate_s = float(draw(st.integers(1, 15))), float(draw(st.integers(1, 20)))
        rows.append(
            BatchJob(number, now_s, nodes, run_s, estimate_s, 0, draw(st.integers(0, machine.burst_buffer_gb)), gb)
        )
    return BatchWorkload(tuple(rows), machine.nodes, resources=machine)


def large_workload(jobs: int, seed: int, *, ssd: bool = False) -> BatchWorkload:
    """Many jobs that ask for much burst buffer, on 256 nodes."""
    rng = random.Random(seed)
    plain = lublin_like(jobs, 256, 0.9, seed)
    machine = MachineResources(256, 1000, 128 * ssd, 128 * ssd, 256 * ssd)
    rows = [
        replace(
            job,
            burst_buffer_gb=rng.randint(1, 600) if rng.random() < 0.6 else 0,
            ssd_gb=rng.randint(0, 256 if job.nodes <= 128 else 128) if ssd else 0,
        )
        for job in plain.jobs
    ]
    return BatchWorkload(tuple(rows), 256, resources=machine)
