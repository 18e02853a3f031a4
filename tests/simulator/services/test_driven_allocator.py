"""What the simulated Allocator is told of jobs is what the real one hears, and it is driven by the same machine."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.wire.messages import job_from_proto
from malletrain.job_manager.machine.jobs import Job, JobSpec, LauncherBackend, ScaleFault
from malletrain.job_manager.visibility import for_service
from malletrain.job_manager.wire import job_message
from malletrain.model.job_state import JobState
from malletrain.model.node_needs import NO_NEEDS, NodeNeeds
from malletrain.simulator.services.driven_allocator import job_as_reported

NAMES = st.lists(st.sampled_from(["n1", "n2", "n3", "n4"]), unique=True).map(tuple)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    least = draw(st.integers(1, 3))
    spec = JobSpec(
        name="a",
        command=tuple(
            draw(st.sampled_from(["python train.py", "bin/train --lr 1", "/opt/venv/bin/python -m t"])).split()
        ),
        working_directory="/work",
        min_nodes=least,
        max_nodes=draw(st.integers(least, 9)),
        environment=draw(st.sampled_from([{}, {"PATH": "/opt/bin"}])),
        permitted_nodes=draw(st.sampled_from([(), (least, 9)])),
        weight=draw(st.sampled_from([0.5, 1.0, 2.0])),
        backend=draw(st.sampled_from(LauncherBackend)),
        cold_start=draw(st.booleans()),
        needs=draw(st.sampled_from([NO_NEEDS, NodeNeeds(gpu="a100", gpu_memory_mib=40960, excluded_nodes=("n3",))])),
    )
    faults = draw(st.sampled_from([(), (ScaleFault(4, 1, 300.0),)]))
    job = Job(7, spec, draw(st.sampled_from([state for state in JobState if not state.final])), "-", 100.0, 160.0)
    return replace(
        job,
        owner=draw(st.sampled_from(["", "ada"])),
        share_weight=draw(st.sampled_from([0.25, 1.0])),
        wanted=draw(NAMES),
        commanded=draw(NAMES),
        confirmed=draw(NAMES),
        not_before=draw(st.sampled_from([None, 170.0])),
        plan_generation=draw(st.integers(0, 9)),
        save_error=draw(st.sampled_from(["", "no space left"])),
        most_nodes=draw(st.sampled_from([0, 5])),
        scale_faults=faults,
    )


@given(job=jobs())
def test_a_job_is_what_the_allocator_hears_of_it(job: Job) -> None:
    message = job_message(job)
    for_service(message)
    assert job_as_reported(job) == job_from_proto(message)
