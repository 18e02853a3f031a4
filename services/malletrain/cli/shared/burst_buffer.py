"""Burst buffer as the command reads and shows it."""

from __future__ import annotations

import re

from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs
from malletrain.model.burst_buffer import GB_PER_TB, burst_buffer_in_words
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.messages import job_state_of
from malletrain.v1 import job_manager_pb2, resources_pb2

_AMOUNT = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))? ?(GB|TB)?\Z", re.IGNORECASE)


def parse_burst_buffer(text: str) -> int:
    """`2TB`, `1.5TB`, `500GB` or `2000` in GB.

    Raises:
        InvalidInputError: it is something else, negative, or no whole number of GB.
    """
    found = _AMOUNT.match(text.strip())
    if found is not None:
        whole, thousandths, unit = found.groups()
        if (unit or "").upper() == "TB":
            return int(whole) * GB_PER_TB + int((thousandths or "").ljust(3, "0"))
        if not int(thousandths or 0):
            return int(whole)
    raise InvalidInputError("--burst-buffer", "whole GB, such as 2000, 500GB or 1.5TB", text)


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
