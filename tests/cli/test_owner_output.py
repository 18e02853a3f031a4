"""What the command shows of owners and weights."""

from __future__ import annotations

import json

import pytest

from malletrain.cli.shared.listing import ListingView, Output
from malletrain.cli.shared.owner_output import plan_weight, print_owners, weight_in_words
from malletrain.v1 import allocator_pb2, job_manager_pb2
from tests.support.builders import job_message

ADA = job_manager_pb2.OwnerShare(
    owner="ada", jobs=100, admitted_jobs=9, nodes=40, used_node_seconds=5400.0, used_fraction=0.75, weight=0.707
)
BOB = job_manager_pb2.OwnerShare(owner="bob", jobs=1, admitted_jobs=1, used_fraction=0.25, weight=1.414)
GONE = job_manager_pb2.OwnerShare(owner="eve", used_node_seconds=36.0, weight=1.0)


def test_the_table_names_jobs_nodes_decayed_use_and_weight(capsys: pytest.CaptureFixture[str]) -> None:
    found = job_manager_pb2.ListOwnersResponse(owners=[ADA, BOB, GONE], half_life_seconds=604800.0)
    print_owners(found, ListingView())
    said = capsys.readouterr()
    out = said.out
    ada, bob, eve = (next(line for line in out.splitlines() if name in line) for name in ("ada", "bob", "eve"))
    assert ada.split("\t") == ["ada", "9/100", "40", "1.5", "75%", "0.71"]
    assert bob.split("\t") == ["bob", "1/1", "0", "0.0", "25%", "1.41"]
    assert "0/0" in eve
    assert "half of a use is left after 7 days" in said.err


def test_json_has_what_the_service_says(capsys: pytest.CaptureFixture[str]) -> None:
    print_owners(job_manager_pb2.ListOwnersResponse(owners=[ADA]), ListingView(Output.JSON))
    found = json.loads(capsys.readouterr().out)
    assert found["halfLifeSeconds"] == 0.0
    assert found["owners"][0]["usedNodeSeconds"] == 5400.0


def test_without_fair_share_the_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_owners(job_manager_pb2.ListOwnersResponse(owners=[ADA]), ListingView())
    assert "job_manager.fair_share_half_life_seconds = 0" in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_weight_that_is_as_submitted_needs_no_words(share: float) -> None:
    assert weight_in_words(job_message(owner="ada", weight=3.0, share_weight=share), ()) == "3"


def test_a_weight_says_where_it_comes_from() -> None:
    share = "times 0.707 for fair share (ada has 75% of the decayed use, an equal share is 50%)"
    assert (
        weight_in_words(job_message(owner="ada", weight=3.0, share_weight=0.707), (ADA, BOB, GONE))
        == f"2.12: 3 as submitted, {share}"
    )
    found = weight_in_words(job_message(owner="ada", weight=3.0, share_weight=0.707 / 2), (ADA, BOB, GONE))
    assert found == f"1.06: 3 as submitted, divided by 2, the mean of ada's jobs, {share}"
    assert (
        weight_in_words(job_message(owner="ada", weight=3.0, share_weight=0.5), ())
        == "1.5: 3 as submitted, times 0.5 for fair share"
    )


def test_a_plan_shows_the_parts_of_a_weight() -> None:
    assert plan_weight(allocator_pb2.JobDemand(weight=2.0)) == "2"
    assert plan_weight(allocator_pb2.JobDemand(weight=1.5, share_weight=0.5)) == "1.5 (3 × 0.5)"
