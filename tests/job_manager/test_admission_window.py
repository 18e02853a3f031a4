"""Who is admitted where jobs ask for burst buffer: quota, order, bound, and nobody without a request held up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from malletrain.job_manager.machine.admission import (
    MAX_WINDOW,
    AdmissionCandidate,
    AdmissionPass,
    AdmissionQueue,
    AdmissionRule,
    BurstBufferPolicy,
    Places,
    admission_pass,
    next_in_line,
)

OWNERS = ["ada", "bob", "eve"]
AMOUNTS = st.sampled_from([0, 0, 0, 1, 2, 3, 5, 8, 10])
JOBS = st.builds(AdmissionCandidate, st.sampled_from(OWNERS), AMOUNTS, st.integers(0, 4))
POLICIES = st.builds(
    BurstBufferPolicy,
    quota_gb=st.sampled_from([0, 5, 10, 12]),
    rule=st.sampled_from(AdmissionRule),
    window=st.integers(1, 6),
    starvation_bound=st.integers(1, 4),
)
USES = st.none() | st.dictionaries(st.sampled_from(OWNERS), st.floats(0, 100))
QUEUES = st.builds(
    AdmissionQueue,
    jobs=st.lists(JOBS, max_size=10),
    taken=st.dictionaries(st.sampled_from(OWNERS), st.integers(0, 3)),
    places=st.builds(Places, st.integers(1, 9), st.integers(0, 3)),
    uses=USES,
    held_gb=st.integers(0, 12),
)
FIFO = BurstBufferPolicy(10)
WINDOW = BurstBufferPolicy(10, AdmissionRule.WINDOW, 20, 3)


def queue_of(*amounts: int, places: int = 9, held: int = 0, passed: tuple[int, ...] = ()) -> AdmissionQueue:
    """Jobs of one owner that ask for so much; `passed`: how often the first of them were passed over."""
    counts = [*passed, *[0] * len(amounts)]
    jobs = [AdmissionCandidate("ada", amount, count) for amount, count in zip(amounts, counts, strict=False)]
    return AdmissionQueue(jobs, {}, Places(places), held_gb=held)


@pytest.mark.parametrize(
    ("policy", "queue", "admitted", "passed_over"),
    [
        # First come, first served: who waits for burst buffer holds up those who ask for some, and nobody else.
        (FIFO, queue_of(5, 0, 5), (0, 1, 2), ()),
        (FIFO, queue_of(8, 8, 0, 1), (0, 2), ()),
        (FIFO, queue_of(8, 8, 0, 1, places=2), (0, 2), ()),
        (FIFO, queue_of(8, 0, held=5), (1,), ()),
        (FIFO, queue_of(11, 2), (1,), ()),  # more than the quota: it can never start, and nobody waits for it
        # A window: as many jobs as possible, then as much burst buffer as possible, then the front.
        (WINDOW, queue_of(8, 5, 5), (1, 2), (0,)),
        (WINDOW, queue_of(5, 5, 5, 5), (0, 1), ()),
        (WINDOW, queue_of(4, 9, places=1), (1,), (0,)),
        (replace(WINDOW, window=2), queue_of(8, 9, 5, 5), (1,), (0,)),
        (replace(WINDOW, window=1), queue_of(8, 5, 5), (0,), ()),
        # The window goes on where all of it start.
        (replace(WINDOW, window=2), queue_of(1, 2, 7, 5), (0, 1, 2), ()),
        # Past the bound: first, and burst buffer is kept for it.
        (WINDOW, queue_of(8, 5, 5, passed=(3,)), (0,), ()),
        (WINDOW, queue_of(8, 5, 0, held=3, passed=(3,)), (2,), ()),
        (WINDOW, queue_of(8, 2, 5, 3, passed=(2, 3)), (1, 2, 3), (0,)),
        # Whoever is behind those who ask for none and take all places is not looked at.
        (WINDOW, queue_of(6, 0, 7, places=1), (0,), ()),
        (WINDOW, queue_of(0, 6, places=1), (0,), ()),
    ],
)
def test_examples(
    policy: BurstBufferPolicy, queue: AdmissionQueue, admitted: tuple[int, ...], passed_over: tuple[int, ...]
) -> None:
    found = admission_pass(queue, policy)
    assert (found.admitted, found.passed_over) == (admitted, passed_over)


def test_a_limit_of_an_owner_does_not_count_jobs_that_wait_for_burst_buffer() -> None:
    jobs = [AdmissionCandidate("ada", 8), AdmissionCandidate("ada"), AdmissionCandidate("bob", 2)]
    queue = AdmissionQueue(jobs, {}, Places(9, 1), held_gb=5)
    assert admission_pass(queue, FIFO).admitted == (1,)
    assert admission_pass(queue, WINDOW).admitted == (1, 2)


def test_fair_share_says_whose_turn_it_is() -> None:
    jobs = [AdmissionCandidate("ada", 6), AdmissionCandidate("ada", 6), AdmissionCandidate("bob", 6)]
    queue = AdmissionQueue(jobs, {"ada": 1}, Places(9), {})
    for policy in (FIFO, WINDOW):
        assert admission_pass(queue, policy).admitted == (2,)


def test_the_longest_window_is_solved() -> None:
    amounts = [3 + 2 * (number % 7) for number in range(MAX_WINDOW)]
    policy = BurstBufferPolicy(100, AdmissionRule.WINDOW, MAX_WINDOW, 50)
    found = admission_pass(queue_of(*amounts, places=40), policy)
    assert len(found.admitted) == sum(total <= 100 for total in accumulate(sorted(amounts)))
    assert 90 < sum(amounts[position] for position in found.admitted) <= 100


@given(queue=QUEUES, policy=POLICIES)
@settings(max_examples=200)
def test_what_always_holds(queue: AdmissionQueue, policy: BurstBufferPolicy) -> None:
    found = admission_pass(queue, policy)
    amounts = [queue.jobs[position].burst_buffer_gb for position in found.admitted]
    assert len(set(found.admitted)) == len(found.admitted) <= queue.free_places
    assert sum(amounts) <= max(0, policy.quota_gb - queue.held_gb), "the quota is never exceeded"
    if queue.places.per_owner:
        counts = Counter(queue.jobs[position].owner for position in found.admitted)
        assert all(queue.taken.get(owner, 0) + counts[owner] <= queue.places.per_owner for owner in counts)
    assert not set(found.passed_over) & set(found.admitted)
    assert set(found.passed_over) <= set(found.held_back) <= set(found.looked_at)
    if not amounts or not any(amounts):
        assert not found.passed_over, "nobody is passed over where nobody gets burst buffer"


@given(queue=QUEUES, policy=POLICIES)
@settings(max_examples=200)
def test_nobody_without_a_request_is_held_up(queue: AdmissionQueue, policy: BurstBufferPolicy) -> None:
    """Who asks for none gets a place if it would get one if nobody asked for any."""
    found = admission_pass(queue, policy)
    everybody = range(len(queue.jobs))
    entitled = {position for position in queue.in_line(everybody) if not queue.jobs[position].burst_buffer_gb}
    assert entitled <= set(found.admitted)
    if queue.uses is None:
        left = [n for n in everybody if not queue.jobs[n].burst_buffer_gb and n not in found.admitted]
        for position in left:
            owner = queue.jobs[position].owner
            behind = [n for n in found.admitted if n > position]
            limited = queue.places.per_owner and any(queue.jobs[n].owner != owner for n in behind)
            assert not behind or limited, "nobody who came later gets a place before it"


@given(queue=QUEUES, policy=POLICIES)
def test_enough_burst_buffer_is_as_if_nobody_asked(queue: AdmissionQueue, policy: BurstBufferPolicy) -> None:
    plenty = replace(queue, held_gb=0, jobs=[replace(job, passed_over=0) for job in queue.jobs])
    granted = replace(policy, quota_gb=1000, rule=AdmissionRule.FIFO)
    everybody = list(range(len(queue.jobs)))
    expected = next_in_line(everybody, lambda n: queue.jobs[n].owner, queue.taken, queue.places, queue.uses)
    assert admission_pass(plenty, granted).admitted == tuple(expected)
    none = replace(queue, jobs=[AdmissionCandidate(job.owner) for job in queue.jobs])
    assert admission_pass(none, policy).admitted == tuple(expected)


@given(queue=QUEUES, policy=POLICIES)
def test_a_window_of_one_is_first_come_first_served(queue: AdmissionQueue, policy: BurstBufferPolicy) -> None:
    alone = replace(policy, rule=AdmissionRule.WINDOW, window=1, starvation_bound=10**6)
    fifo = replace(policy, rule=AdmissionRule.FIFO)
    assert admission_pass(queue, alone) == admission_pass(queue, fifo)


@given(queue=QUEUES, policy=POLICIES)
def test_of_equal_requests_the_first_comes_first(queue: AdmissionQueue, policy: BurstBufferPolicy) -> None:
    """Of one owner's, without fair share: of several owners' its order decides."""
    same = replace(queue, uses=None, jobs=[replace(job, owner="ada", passed_over=0) for job in queue.jobs])
    admitted = set(admission_pass(same, policy).admitted)
    for earlier, first in enumerate(same.jobs):
        for later in range(earlier + 1, len(same.jobs)):
            if same.jobs[later].burst_buffer_gb == first.burst_buffer_gb:
                assert earlier in admitted or later not in admitted


@given(data=st.data(), policy=POLICIES, places=st.integers(1, 4), limit=st.integers(0, 2), uses=USES)
@settings(max_examples=60, deadline=None)
def test_over_many_passes_the_bound_is_kept_and_nobody_starves(
    data: st.DataObject, policy: BurstBufferPolicy, places: int, limit: int, uses: dict[str, float] | None
) -> None:
    """Jobs come and end in any order. In the end, when no more come, all that fit the quota have been admitted."""
    granted = replace(policy, quota_gb=10)
    waiting, running = list[AdmissionCandidate](), list[AdmissionCandidate]()

    def run_pass() -> AdmissionPass:
        nonlocal waiting
        taken = Counter(job.owner for job in running)
        held = sum(job.burst_buffer_gb for job in running)
        found = admission_pass(AdmissionQueue(waiting, taken, Places(places, limit), uses, held), granted)
        running.extend(waiting[position] for position in found.admitted)
        counted = [
            replace(job, passed_over=job.passed_over + (n in found.passed_over)) for n, job in enumerate(waiting)
        ]
        waiting = [job for n, job in enumerate(counted) if n not in found.admitted]
        assert all(job.passed_over <= granted.starvation_bound for job in waiting)
        assert sum(job.burst_buffer_gb for job in running) <= 10
        return found

    for _ in range(data.draw(st.integers(1, 12))):
        waiting += data.draw(st.lists(st.builds(AdmissionCandidate, st.sampled_from(OWNERS), AMOUNTS), max_size=4))
        run_pass()
        assert not run_pass().passed_over, "a pass at which nothing has changed counts nothing"
        for _ in range(data.draw(st.integers(0, 2))):
            if running:
                running.pop(data.draw(st.integers(0, len(running) - 1)))
    for _ in range(len(waiting) + len(running)):
        running.pop(0) if running else None
        run_pass()
    assert not waiting


@given(big=st.integers(6, 10), small=st.integers(1, 5), bound=st.integers(1, 5))
def test_a_stream_of_small_requests_passes_a_big_one_over_as_often_as_it_may(big: int, small: int, bound: int) -> None:
    policy = BurstBufferPolicy(10, AdmissionRule.WINDOW, 4, bound)
    held, job = [5], AdmissionCandidate("ada", big)
    passes = 0
    while True:
        queue = AdmissionQueue([job, AdmissionCandidate("ada", small)], {"ada": 1}, Places(9), held_gb=sum(held))
        found = admission_pass(queue, policy)
        if 0 in found.admitted:
            break
        passes += 0 in found.passed_over
        job = replace(job, passed_over=job.passed_over + (0 in found.passed_over))
        held = [*held, *[small for n in found.admitted if n == 1]][1:]  # the first of those that run ends
    assert passes <= bound
