"""What is asked with one word, and what is told of a job that the plan does not know."""

from __future__ import annotations

import pytest

from malletrain.cli.jobs.explain import request_of
from malletrain.runtime.errors import InvalidInputError


@pytest.mark.parametrize(
    ("what", "plan", "node", "asked"),
    [
        ("", 0, False, (0, "", "")),
        ("", 4, False, (4, "", "")),
        ("17", 0, False, (17, "", "")),
        ("j000012", 3, False, (3, "j000012", "")),
        ("f000012", 0, False, (0, "f000012", "")),
        ("j12", 0, False, (0, "", "j12")),
        ("n017", 3, False, (3, "", "n017")),
        ("17", 3, True, (3, "", "17")),
        ("j000012", 0, True, (0, "", "j000012")),
    ],
)
def test_one_word_names_a_job_a_node_or_a_plan(what: str, plan: int, node: bool, asked: tuple[int, str, str]) -> None:
    request = request_of(what, plan, node=node)
    assert (request.generation, request.job_id, request.node) == asked


@pytest.mark.parametrize(
    ("what", "plan", "node", "field"), [("17", 3, False, "--plan"), ("", 0, True, "--node"), ("0", 0, False, "PLAN")]
)
def test_what_can_not_be_meant_is_refused(what: str, plan: int, node: bool, field: str) -> None:
    with pytest.raises(InvalidInputError, match=field):
        request_of(what, plan, node=node)
