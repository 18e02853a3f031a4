"""The generated GPU cluster of benchmarks/gpu_units.py, by which the docs say what single GPUs are worth."""

from __future__ import annotations

import random

from benchmarks.gpu_units import GPUS, Cluster, MainJob, idle_times, main_jobs, run_main_queue, trace_of

DAY_S = 86_400.0


def test_small_jobs_fit_best_and_large_ones_take_whole_nodes() -> None:
    cluster = Cluster(3)
    assert cluster.start(MainJob(0.0, 10.0, 4), 0.0) == [(0, 4)]
    assert cluster.start(MainJob(0.0, 10.0, 1), 1.0) == [(0, 1)]
    assert cluster.start(MainJob(0.0, 10.0, 4), 2.0) == [(1, 4)], "not beside five"
    assert cluster.start(MainJob(0.0, 10.0, 16), 3.0) is None
    assert cluster.start(MainJob(0.0, 10.0, 8), 3.0) == [(2, 8)]
    cluster.end([(0, 4)], 4.0)
    assert cluster.history[0] == [(0.0, 8), (0.0, 4), (1.0, 3), (4.0, 7)]


def test_the_first_in_the_queue_waits_for_so_long_and_no_longer() -> None:
    jobs = [MainJob(0.0, 10_000.0, 4), MainJob(1.0, 100.0, 8), *(MainJob(t, 9_000.0, 4) for t in (2.0, 9_500.0))]
    (history,) = run_main_queue(jobs, 1).history
    # The second waits for the first; the third goes first, the fourth does not: the second has waited for two hours.
    assert (2.0, 0) in history
    assert history[-4:] == [(10_000.0, 0), (10_100.0, 8), (10_100.0, 4), (19_100.0, 8)]


def test_when_gpus_of_a_node_are_idle() -> None:
    history = [(0.0, 8), (100.0, 7), (500.0, 0), (900.0, 8)]
    assert idle_times(history, 8, 2000.0) == [(900.0, 2000.0)], "100 s are too short"
    assert idle_times(history, 7, 2000.0) == [(0.0, 500.0), (900.0, 2000.0)]
    assert idle_times(history, 1, 600.0) == [(0.0, 500.0)]


def test_single_gpus_are_idle_whenever_their_node_is() -> None:
    cluster = run_main_queue(main_jobs(6, DAY_S, 0.7, random.Random(3)), 6)
    assert all(0 <= free <= GPUS for history in cluster.history for _, free in history)
    whole, single = (trace_of(cluster, DAY_S, by_gpu=by_gpu) for by_gpu in (False, True))
    assert len(single.nodes) == GPUS * len(whole.nodes)
    by_gpu = sum(fragment.length_s for fragment in single.fragments)
    assert by_gpu >= GPUS * sum(fragment.length_s for fragment in whole.fragments) > 0
