"""Which jobs belong together on the page Compare, and how their lines differ."""

from __future__ import annotations

import pytest

from malletrain.dashboard.figures.colours import THEMES
from malletrain.dashboard.figures.plots import Course, course_lines
from malletrain.dashboard.pages.compare_page import usual_metric
from malletrain.dashboard.pages.selection import Selection
from malletrain.observer.job_facts import JobFact
from malletrain.observer.job_groups import JobGroup, belongs, groups_of


@pytest.mark.parametrize(
    ("job", "group", "found"),
    [
        (JobFact("j1", name="a", array="a000001"), "a000001", True),
        (JobFact("j1", name="a", fleet="f000001"), "f000001", True),
        (JobFact("j1", name="resnet"), "resnet", True),
        (JobFact("j1", name="study-12"), "study", True),
        (JobFact("j1", name="study-12"), "study-12", True),
        (JobFact("j1", name="study-12"), "study-1", False),
        (JobFact("j1", name="study-x"), "study", False),
        (JobFact("j1", name=""), "", False),
        (JobFact("j1"), "", False),
    ],
)
def test_members(job: JobFact, group: str, found: bool) -> None:
    assert belongs(job, group) == found


def test_groups_of_several_jobs_the_newest_first() -> None:
    jobs = [
        *(JobFact(f"j00000{number}", name="sweep", array="a000001") for number in (1, 2)),
        *(JobFact(f"j00000{number}", name=f"study-{number}") for number in (3, 4, 9)),
        *(JobFact(f"j00000{number}", name="again") for number in (5, 6)),
        *(JobFact(f"j00000{number}") for number in (7, 8)),
        JobFact("j000010", name="alone"),
    ]
    assert groups_of(jobs, "ada") == [
        JobGroup("study", "study", "", 3),
        JobGroup("again", "again", "", 2),
        JobGroup("a000001", "sweep", "", 2),
    ]


def test_jobs_of_different_owners_are_no_group_and_those_of_the_viewer_come_first() -> None:
    jobs = [
        *(JobFact(f"j00000{number}", name="resnet", owner="ada") for number in (1, 2)),
        *(JobFact(f"j00000{number}", name="resnet", owner="eve") for number in (3, 4, 5)),
        JobFact("j000006", name="resnet", owner="bob"),
    ]
    of_ada, of_eve = JobGroup("resnet", "resnet", "ada", 2), JobGroup("resnet", "resnet", "eve", 3)
    assert groups_of(jobs, "ada") == [of_ada, of_eve]
    assert groups_of(jobs, "bob") == [of_eve, of_ada]


def test_lines_of_one_colour_are_drawn_differently() -> None:
    for colours in THEMES.values():
        courses = [Course(f"j{number:06d}", "", [1], [0.5]) for number in range(1, 41)]
        lines = course_lines(courses, colours)
        assert len(set(zip(lines["colour"], lines["dash"], strict=True))) == 40
        assert colours.dash_of_job("") == "solid"


def test_what_jobs_are_compared_by() -> None:
    assert usual_metric({"accuracy", "loss"}) == "loss"
    assert usual_metric({"b", "a"}) == "a"
    assert usual_metric(set()) == ""


def test_a_group_is_chosen_by_the_address() -> None:
    found = Selection.of({"group": [b"a b&c"], "owner": [b"ada"], "metric": [b"val loss"]})
    assert (found.group, found.owner, found.metric) == ("a b&c", "ada", "val loss")
    assert found.link("compare", metric="") == "/compare?group=a+b%26c&owner=ada"
    assert Selection.of({"group": [b"a\n"], "metric": [b"x" * 257]}) == Selection()


def test_the_usual_span_fits_the_past() -> None:
    usual = Selection.of({})
    assert [usual.fitted(0.0, past).span for past in (0.0, 600.0, 900.0, 901.0, 1e6)] == [900, 900, 900, 3600, 3600]
    assert usual.fitted(0.0, 600.0).link("jobs") == "/jobs", "it goes on fitting"
    chosen = Selection.of({"span": [b"3600"]})
    assert chosen.fitted(0.0, 600.0) == chosen
    assert usual.link("now", span=3600.0) == "/now?span=3600"
    assert Selection.of({"until": [b"1000"]}).fitted(990.0, 1000.0).span == 3600
