"""Burst buffer as the command shows it."""

from __future__ import annotations

from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.model.burst_buffer import burst_buffer_in_words
from malletrain.runtime.messages import job_state_of
from malletrain.v1 import job_manager_pb2, resources_pb2


def quota_of(stubs: ServiceStubs) -> job_manager_pb2.BurstBufferQuota:
    """The quota that the operator grants, and what of it is held."""
    request = job_manager_pb2.ListJobsRequest(page_size=1)
    return stubs.job_manager.ListJobs(request, timeout=DEADLINE_SECONDS).burst_buffer


def quota_in_words(quota: job_manager_pb2.BurstBufferQuota) -> str:
    """A line about the quota."""
    held, granted, free = map(burst_buffer_in_words, (quota.held_gb, quota.granted_gb, quota.free_gb))
    return f"burst buffer: jobs hold {held} of {granted}, {free} are free"


def request_in_words(job: resources_pb2.Job) -> str:
    """What a job asks for, and whether it has it."""
    if job.admitted:
        holds = "held until its end"
    elif job_state_of(job.state).final:
        holds = "given back"
    else:
        holds = "not held yet"
    if job.passed_over:
        holds += f", passed over {job.passed_over} {'time' if job.passed_over == 1 else 'times'}"
    return f"{burst_buffer_in_words(job.spec.burst_buffer_gb)}, {holds}"
