"""The order of admission: which jobs of the queue take part in plans, as many as there are places (MalleTrain, §3.2).

First come, first served. With fair share and several owners, a free place goes to the owner who has the fewest jobs in
plans; among equals to the one who has used less lately, and then to the job that came first. An owner may have a limit
of its own, and then does not hold up the others. Burst buffer is
`malletrain.job_manager.machine.admission_window`'s matter.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TypeVar

_T = TypeVar("_T")


def first_in_line(queued: Iterable[_T], taken: int, places: int) -> list[_T]:
    """Who is admitted next: the first of the queue, as many as there are free places.

    Args:
        queued: The queue, first come first.
        taken: How many are admitted already.
        places: How many may be admitted at once.
    """
    return list(islice(queued, max(0, places - taken)))


@dataclass(frozen=True)
class Places:
    """How many jobs may be admitted at once.

    Attributes:
        all: Of all owners.
        per_owner: Of one owner; 0: as many as of all.
    """

    all: int
    per_owner: int = 0


def next_in_line(
    queued: Sequence[_T],
    owner_of: Callable[[_T], str],
    taken: Mapping[str, int],
    places: Places,
    uses: Mapping[str, float] | None,
) -> list[_T]:
    """Who is admitted next.

    Args:
        queued: The queue, first come first.
        owner_of: Owner of a job.
        taken: How many jobs of each owner are admitted already.
        places: How many may be admitted at once.
        uses: Decayed use of each owner, for fair share; None: first come, first served.
    """
    free = places.all - sum(taken.values())
    if free <= 0 or not queued:
        return []
    if uses is None and not places.per_owner:
        return first_in_line(queued, 0, free)
    lines: dict[str, deque[tuple[int, _T]]] = {}
    for number, job in enumerate(queued):
        lines.setdefault(owner_of(job), deque()).append((number, job))
    counts = Counter(taken)

    def rank(owner: str) -> tuple[int, float, int]:
        number = lines[owner][0][0]
        return (0, 0.0, number) if uses is None else (counts[owner], uses.get(owner, 0.0), number)

    def may_have_more(owner: str) -> bool:
        return not places.per_owner or counts[owner] < places.per_owner

    ready = [(rank(owner), owner) for owner in lines if may_have_more(owner)]
    heapify(ready)
    found: list[_T] = []
    while ready and free > len(found):
        _, owner = heappop(ready)
        found.append(lines[owner].popleft()[1])
        counts[owner] += 1
        if lines[owner] and may_have_more(owner):
            heappush(ready, (rank(owner), owner))
    return found
