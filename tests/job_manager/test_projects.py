"""Projects: by the operator's list, or by the user's Unix groups."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from malletrain.job_manager.projects import NO_PROJECTS, OwnerProjects, ProjectRule, projects_of
from malletrain.runtime.access.installation import own_user
from malletrain.runtime.errors import InvalidInputError

LIST = {"bio": ("ada", "bob"), "open": ("*",), "chem": ("bob",)}


def refusal(projects: OwnerProjects, project: str) -> str:
    with pytest.raises(InvalidInputError) as error:
        projects.check("specs[3].project", project)
    assert error.value.field == "specs[3].project"
    return str(error.value)


def test_a_list_names_the_users_of_each_project() -> None:
    hers = projects_of("ada", ProjectRule(LIST))
    assert hers.names == {"bio", "open"}
    assert hers.check("specs[3].project", "bio") == "bio"
    assert hers.check("specs[3].project", "") == ""
    assert "one of bio, open (job_manager.projects), got 'chem'" in refusal(hers, "chem")
    assert projects_of("eve", ProjectRule(LIST)).names == {"open"}
    assert projects_of("root", ProjectRule({"bio": ("ada",)})).names == frozenset()


def test_without_a_list_the_unix_groups_of_a_user_are_its_projects() -> None:
    mine = projects_of(own_user(), ProjectRule({}))
    primary = grp.getgrgid(pwd.getpwuid(os.geteuid()).pw_gid).gr_name
    assert primary in mine.names
    assert mine.check("specs[3].project", primary) == primary
    assert "the Unix groups of" in refusal(mine, "no-such-group-here")


def test_who_has_no_account_has_no_groups() -> None:
    nobody = projects_of("no-such-user-here", ProjectRule({}))
    said = refusal(nobody, "root")
    assert "no-such-user-here has no account on this machine" in said
    assert nobody.check("specs[3].project", "") == ""


def test_a_project_may_be_required() -> None:
    hers = projects_of("ada", ProjectRule(LIST, required=True))
    assert "as job_manager.project_required says: one of bio, open" in refusal(hers, "")
    assert hers.check("specs[3].project", "open") == "open"


@pytest.mark.parametrize("name", ["a b", "=1+1", "-x", "@sum", "a\x1b[2J", "a\n", "ä", "x" * 65, "a/b", 'a"b', "a,b"])
def test_names_that_would_harm_a_terminal_or_a_table_are_none(name: str) -> None:
    assert "1 to 64 letters" in refusal(OwnerProjects(frozenset({name}), "list"), name)


def test_many_groups_are_not_all_told() -> None:
    said = refusal(OwnerProjects(frozenset(f"g{number}" for number in range(500)), "the Unix groups of ada"), "x")
    assert "and 490 more" in said
    assert len(said) < 300


def test_nothing_is_permitted_where_nothing_was_asked() -> None:
    assert "there is no project for this user" in refusal(NO_PROJECTS, "bio")
