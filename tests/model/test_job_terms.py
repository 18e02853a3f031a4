"""The terms of a job, and that all forms of a job have them."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.allocator.problem.allocation_problem import JobDemand
from malletrain.allocator.problem.planner import PlannableJob
from malletrain.job_manager.machine.jobs import JobSpec
from malletrain.job_manager.wire import spec_message
from malletrain.model.job_terms import JobTerms
from malletrain.model.topology import TopologyPreference
from malletrain.profiler.machine.curve_estimator import JobDeclaration
from malletrain.runtime.kernel.documents import from_document, to_document
from malletrain.runtime.messages import terms_of

TERMS = JobTerms(2, 8, permitted_nodes=(2, 4, 8), weight=3.0, topology=TopologyPreference.REQUIRE, topology_level=1)


@given(st.integers(1, 6), st.integers(0, 6), st.sets(st.integers(0, 12)), st.integers(-1, 14))
def test_the_largest_scale_within_is_the_last_that_is_permitted(least: int, more: int, some: set[int], n: int) -> None:
    permitted = tuple(sorted(scale for scale in some if least <= scale <= least + more))
    terms = JobTerms(least, least + more, permitted_nodes=permitted)
    assert terms.max_within(n) == max((scale for scale in terms.scales if scale <= n), default=0)
    assert [scale for scale in range(15) if terms.permits(scale)] == list(terms.scales)
    assert terms.smallest == terms.scales[0]


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        (JobSpec, {"name": "job", "command": ("true",), "working_directory": "/"}),
        (PlannableJob, {"id": "j1"}),
        (JobDemand, {"id": "j1", "curve": ()}),
        (JobDeclaration, {"job_id": "j1"}),
    ],
)
def test_every_form_of_a_job_takes_all_terms(kind: type[JobTerms], others: dict[str, object]) -> None:
    job = kind(**TERMS.terms(**others))
    assert job.terms() == TERMS.terms()
    assert job.terms(weight=1.0)["weight"] == 1.0


def test_what_jobmanager_reports_of_a_job_are_its_terms() -> None:
    spec = JobSpec(**TERMS.terms(name="job", command=("true",), working_directory="/"))
    assert terms_of(spec_message(spec)) == TERMS


def test_a_spec_is_stored_as_it_was_before_it_had_terms_of_its_own() -> None:
    spec = JobSpec(**TERMS.terms(name="job", command=("true",), working_directory="/"))
    document = to_document(spec)
    assert {field.name for field in fields(JobTerms)} <= set(document)
    assert document["permitted_nodes"] == [2, 4, 8]
    assert from_document(JobSpec, document) == spec
