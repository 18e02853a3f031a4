"""Jobs to compare that the dashboard does not know of itself, of any age that JobManager keeps: asked for per viewer.

The dashboard's own history has those that have not ended, or have in the last 24 hours.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import grpc
import grpc.aio

from malletrain.dashboard.identities import Viewer
from malletrain.dashboard.pages.job_answers import job_manager
from malletrain.dashboard.pages.selection import Selection
from malletrain.observer.history import History
from malletrain.observer.job_facts import JobFact
from malletrain.observer.job_groups import belongs
from malletrain.observer.job_intake import job_fact
from malletrain.observer.watching import Watcher
from malletrain.runtime.channel import DEADLINE_SECONDS
from malletrain.v1 import job_manager_pb2

MAX_JOBS = 64
"""That are compared, the newest; the viewer's own before those of others."""
MAX_WORDS = 16
"""Identifiers and names of a group that is typed in."""
_MAX_PAGES = 20
_SEARCH_S = 20.0
"""After so many pages, each of which JobManager makes of at most 1000 jobs, or so many seconds, a search ends."""
_MAX_SUBMITTED = 1000
"""Jobs of a submission, as many as JobManager looks at for a page."""
_MAX_SEARCHES = 4
_KEPT_S = 60.0
_MAX_KEPT = 100
_IDENTIFIER = re.compile(r"[jaf][0-9]{6,18}\Z")


def words_of(group: str) -> tuple[str, ...]:
    """What a group is made of: identifiers, apart by blanks or commas, or names, apart by commas; at most 16."""
    blanks = group.replace(",", " ").split()
    words = blanks if all(map(_IDENTIFIER.match, blanks)) else [word.strip() for word in group.split(",")]
    return tuple(dict.fromkeys(word for word in words if word))[:MAX_WORDS]


def is_chosen(job: JobFact, selection: Selection) -> bool:
    """Whether a job is one of those that are to be compared."""
    words = (selection.group, *words_of(selection.group))  # a name may have a comma in it
    return selection.owner in ("", job.owner) and any(word == job.id or belongs(job, word) for word in words if word)


def members_of(history: History, selection: Selection, user: str, older: Iterable[JobFact] = ()) -> list[JobFact]:
    """The newest jobs of the chosen group, oldest first: those of one owner if one is chosen, else a user's before all.

    Names are chosen freely, so that jobs of others may have the same: they push out none of the user's own.

    Args:
        history: What the dashboard knows, which is as of now.
        selection: With the group, and its owner if one is chosen.
        user: Who looks at them.
        older: Jobs that JobManager has answered.
    """
    known = {job.id: job for job in older} | dict(history.jobs)
    members = [job for job in known.values() if is_chosen(job, selection)]
    members.sort(key=lambda job: (job.owner == user, len(job.id), job.id))
    return sorted(members[-MAX_JOBS:], key=lambda job: (len(job.id), job.id))


@dataclass(frozen=True)
class OlderAnswer:
    """What JobManager has answered.

    Attributes:
        jobs: The newest of the group; at most 64 for each word of it.
        whole: Whether all jobs that are kept were looked at, as far as they could have been among these.
    """

    jobs: tuple[JobFact, ...] = ()
    whole: bool = True


class OlderJobs:
    """Asks JobManager in the viewers' names. A viewer makes one search at a time, and all together a few."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._kept: OrderedDict[Hashable, tuple[float, OlderAnswer]] = OrderedDict()
        self._of_user: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._places = asyncio.Semaphore(_MAX_SEARCHES)

    async def ask(self, viewer: Viewer, selection: Selection) -> OlderAnswer:
        """The jobs of the chosen group; what was answered to the same viewer within a minute is not asked for again.

        Raises:
            grpc.aio.AioRpcError: JobManager refuses, or does not answer.
        """
        key = (viewer.token_id, viewer.user, selection.group, selection.owner)
        lock = self._of_user.setdefault(viewer.user, asyncio.Lock())
        async with lock:
            asked_at, answer = self._kept.get(key, (0.0, OlderAnswer()))
            if self._watcher.now() - asked_at < _KEPT_S:
                return answer
            async with self._places:
                answer = await _Search(self._watcher, viewer, selection.owner).jobs_of(words_of(selection.group))
            self._kept[key] = self._watcher.now(), answer
            self._kept.move_to_end(key)
            while len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
            return answer


class _Search:
    """One search. All of its words share its limits."""

    def __init__(self, watcher: Watcher, viewer: Viewer, owner: str) -> None:
        self._watcher = watcher
        self._viewer = viewer
        self._owner = owner
        self._until = watcher.now() + _SEARCH_S
        self._pages = _MAX_PAGES

    async def jobs_of(self, words: Iterable[str]) -> OlderAnswer:
        """The jobs of all words."""
        jobs: dict[str, JobFact] = {}
        whole = True
        for word in words:
            answer = await self._of_word(word)
            jobs |= {job.id: job for job in answer.jobs}
            whole = whole and answer.whole
        return OlderAnswer(tuple(jobs.values()), whole)

    async def _of_word(self, word: str) -> OlderAnswer:
        if not _IDENTIFIER.match(word):
            return await self._jobs_of_name(word)
        if word.startswith("j"):
            return await self._one(word)
        # Its jobs are of one submission, so that they are among the thousand from its number on.
        request = self._newest(word, self._owner)
        request.page_token = str(int(word[1:]) + _MAX_SUBMITTED)
        return replace(await self._list_jobs(request, 1), whole=True)

    async def _one(self, job_id: str) -> OlderAnswer:
        try:
            answer = await self._call("GetJob", job_manager_pb2.GetJobRequest(job_id=job_id))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return OlderAnswer()
            raise
        return OlderAnswer((job_fact(answer.job),))

    async def _jobs_of_name(self, name: str) -> OlderAnswer:
        """Jobs of a name: the chosen owner's; where none is chosen the viewer's own, or else those of others."""
        own = await self._list_jobs(self._newest(name, self._owner or self._viewer.user), _MAX_PAGES)
        if own.jobs or self._owner:
            return own
        others = await self._list_jobs(self._newest(name, ""), _MAX_PAGES)
        return OlderAnswer(others.jobs, own.whole and others.whole)

    def _newest(self, name: str, owner: str) -> job_manager_pb2.ListJobsRequest:
        return job_manager_pb2.ListJobsRequest(group=name, owner=owner, newest_first=True, page_size=MAX_JOBS)

    async def _list_jobs(self, request: job_manager_pb2.ListJobsRequest, pages: int) -> OlderAnswer:
        """Jobs of the pages of a listing, until there are enough of them.

        Each page is asked for only within what is left of the pages and the time of the whole search, so `all_pages`,
        which reads to the end, does not fit.
        """
        listed: list[JobFact] = []
        for _ in range(pages):
            if self._pages == 0 or self._watcher.now() > self._until:
                return OlderAnswer(tuple(listed), whole=False)
            self._pages -= 1
            answer: Any = await self._call("ListJobs", request)
            # A JobManager of the version before lists all jobs.
            listed += [fact for fact in map(job_fact, answer.jobs) if belongs(fact, request.group)]
            request.page_token = answer.next_page_token
            if not request.page_token or len(listed) >= MAX_JOBS:
                return OlderAnswer(tuple(listed))
        return OlderAnswer(tuple(listed), whole=False)

    async def _call(self, method: str, request: Any) -> Any:
        call = getattr(job_manager(self._watcher), method)
        return await call(request, metadata=self._viewer.metadata, timeout=DEADLINE_SECONDS)
