"""Which projects a user may have jobs accounted to: by a list of the operator, or by the user's Unix groups."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from malletrain.runtime.errors import InvalidInputError

PROJECT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,63}\Z")
PROJECT_NAME_IN_WORDS = "1 to 64 letters, digits and _.+@-, the first of them a letter, a digit or _"
ALL_USERS = "*"
_MAX_TOLD = 10


@dataclass(frozen=True)
class ProjectRule:
    """How the operator lets users name projects.

    Attributes:
        listed: Users of each project, `*` for all; empty: each user's Unix groups are its projects.
        required: Whether each job must have one.
    """

    listed: Mapping[str, Sequence[str]]
    required: bool = False


@dataclass(frozen=True)
class OwnerProjects:
    """The projects of one user.

    Attributes:
        source: Where they come from, for people.
        required: Whether each job must have one.
    """

    names: frozenset[str]
    source: str
    required: bool = False

    def check(self, field: str, project: str) -> str:
        """A project that was submitted; empty: none.

        Args:
            field: Path of the field, for errors.
            project: What it holds.

        Raises:
            InvalidInputError: it is no name of a project, or none of this user's, or it is missing.
        """
        if not project:
            if self.required:
                expected = f"a project, as job_manager.project_required says: {self._in_words()}"
                raise InvalidInputError(field, expected)
            return ""
        if not PROJECT_NAME.match(project):
            raise InvalidInputError(field, PROJECT_NAME_IN_WORDS, project)
        if project not in self.names:
            raise InvalidInputError(field, self._in_words(), project)
        return project

    def _in_words(self) -> str:
        usable = sorted(name for name in self.names if PROJECT_NAME.match(name))
        if not usable:
            return f"nothing: there is no project for this user ({self.source})"
        more = f" and {len(usable) - _MAX_TOLD} more" if len(usable) > _MAX_TOLD else ""
        return f"one of {', '.join(usable[:_MAX_TOLD])}{more} ({self.source})"


NO_PROJECTS = OwnerProjects(frozenset(), "job_manager.projects")


def projects_of(owner: str, rule: ProjectRule) -> OwnerProjects:
    """The projects of a user. Asks the system for its groups, which may take a while where a directory has them.

    Args:
        owner: Name of the user.
        rule: What the operator has set.
    """
    if rule.listed:
        names = frozenset(name for name, users in rule.listed.items() if owner in users or ALL_USERS in users)
        return OwnerProjects(names, "job_manager.projects", rule.required)
    try:
        account = pwd.getpwnam(owner)
    except (KeyError, ValueError):
        source = f"{owner} has no account on this machine, and job_manager.projects lists none"
        return OwnerProjects(frozenset(), source, rule.required)
    return OwnerProjects(frozenset(_group_names(account)), f"the Unix groups of {owner}", rule.required)


def _group_names(account: pwd.struct_passwd) -> list[str]:
    groups = []
    for number in os.getgrouplist(account.pw_name, account.pw_gid):
        with suppress(KeyError):  # a group without a name
            groups.append(grp.getgrgid(number).gr_name)
    return groups
