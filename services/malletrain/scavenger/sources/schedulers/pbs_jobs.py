"""Reads the jobs that `qstat -f -w` prints. Pure.

Text rather than JSON, since what users choose can't pretend to be anything else there: each attribute is one line,
line breaks within a value are printed as `\\n` (qstat.c, `convert_feed_chars`), and all names are the server's. In the
JSON of PBS before 2024 the names of a user's variables, with any quotes and line breaks in them, stand as they are, so
that a user could add jobs to the answer, or hide those of others. JSON is read where a site's own qstat prints it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from malletrain.scavenger.sources.schedulers.availability import UnreadableError
from malletrain.scavenger.sources.schedulers.tolerant_json import read_answer

QSTAT_FULL = ("-f", "-w")
"""Options of qstat for `read_jobs`; PBS Pro 18.1 and later."""

_JOB = "Job Id: "


def read_jobs(text: str, attributes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Attributes of each job; those with resources, such as `estimated.start_time`, as a dictionary of these.

    Args:
        text: What `qstat -f -w` or `qstat -f -F json` printed. The values of text are strings.
        attributes: Names of the attributes that are wanted. Others are left out, except of JSON.

    Raises:
        UnreadableError: the text has another form.
    """
    if text.lstrip().startswith("{"):
        return _from_json(text)
    if text and not text.endswith("\n"):
        raise UnreadableError("an answer that ends with a line break", text[-40:])
    if text.strip() and not text.startswith(_JOB):
        raise UnreadableError("jobs, as `qstat -f -w` prints them", text)
    wanted = "|".join(map(re.escape, attributes))
    # Only a line break ends a line: a user's value may contain what else Python takes for one.
    line = re.compile(rf"^(?:{_JOB}(\S+)|    ({wanted})(?:\.([^\s=]+))? = ([^\n]*))$", re.MULTILINE)
    jobs: dict[str, dict[str, Any]] = {}
    job: dict[str, Any] = {}
    for identifier, name, resource, value in line.findall(text):
        if identifier:
            job = jobs.setdefault(identifier, {})
        elif not resource:
            job.setdefault(name, value)
        elif isinstance(resources := job.setdefault(name, {}), dict):
            resources.setdefault(resource, value)
    return jobs


def _from_json(text: str) -> dict[str, dict[str, Any]]:
    answer = read_answer(text, skip_damage=True)
    jobs = answer.get("Jobs", {})
    if "pbs_version" not in answer or not isinstance(jobs, dict):
        raise UnreadableError("an answer of PBS", text)
    return {identifier: job for identifier, job in jobs.items() if isinstance(job, dict)}
