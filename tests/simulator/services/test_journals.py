"""What JobManager writes to its journal, event by event, when the services run on a simulated clock."""

from __future__ import annotations

import pytest

from malletrain.common.job_limits import JobLimits
from tests.simulator.services.scripts import (
    Script,
    cancel,
    done,
    fail,
    idle,
    leave,
    lines,
    lose_worker,
    pin,
    progress,
    run_script,
    submit,
)

SCRIPTS = (
    Script(
        "a job starts, grows when a node joins, and its trainer says that it is done",
        [(0, idle("n1")), (1, submit("a")), (30, idle("n1", "n2")), (60, done("a"))],
        """
            1 a -         QUEUED    SUBMITTED
            1 a QUEUED    WAITING   ADMITTED
         1.05 a WAITING   STARTING  PLAN_STARTED  n1
        11.05 a STARTING  RUNNING   CONFIRMED     n1
        30.05 a RUNNING   RESCALING PLAN_RESCALED n1 n2
        40.05 a RESCALING RUNNING   CONFIRMED     n1 n2
           60 a RUNNING   COMPLETED TRAINER_DONE
        """,
    ),
    Script(
        "nodes that join within the coalescing time make one plan",
        [(0, idle("n1")), (0, submit("a")), (30, idle("n1", "n2")), (30.03, idle("n1", "n2", "n3"))],
        """
            0 a -         QUEUED    SUBMITTED
            0 a QUEUED    WAITING   ADMITTED
         0.05 a WAITING   STARTING  PLAN_STARTED  n1
        10.05 a STARTING  RUNNING   CONFIRMED     n1
        30.05 a RUNNING   RESCALING PLAN_RESCALED n1 n2 n3
        40.05 a RESCALING RUNNING   CONFIRMED     n1 n2 n3
        """,
    ),
    Script(
        "a job of more weight gets nodes once the other one has given them up",
        [
            (0, idle("n1", "n2", "n3", "n4")),
            (0, submit("a")),
            (30, submit("b", least=2, most=2, weight=3.0)),
            (100, done("b")),
        ],
        """
             0 a -         QUEUED    SUBMITTED
             0 a QUEUED    WAITING   ADMITTED
          0.05 a WAITING   STARTING  PLAN_STARTED  n1 n2 n3 n4
         10.05 a STARTING  RUNNING   CONFIRMED     n1 n2 n3 n4
            30 b -         QUEUED    SUBMITTED
            30 b QUEUED    WAITING   ADMITTED
         30.05 a RUNNING   RESCALING PLAN_RESCALED n1 n2
         34.05 a RESCALING RUNNING   CONFIRMED     n1 n2
         34.05 b WAITING   STARTING  PLAN_STARTED  n3 n4
         44.05 b STARTING  RUNNING   CONFIRMED     n3 n4
           100 b RUNNING   COMPLETED TRAINER_DONE
        100.05 a RUNNING   RESCALING PLAN_RESCALED n1 n2 n3 n4
        110.05 a RESCALING RUNNING   CONFIRMED     n1 n2 n3 n4
        """,
    ),
    Script(
        "a node that leaves is released at once, and the job goes on with the rest",
        [(0, idle("n1", "n2")), (0, submit("a")), (30, idle("n2"))],
        """
            0 a -         QUEUED    SUBMITTED
            0 a QUEUED    WAITING   ADMITTED
         0.05 a WAITING   STARTING  PLAN_STARTED  n1 n2
        10.05 a STARTING  RUNNING   CONFIRMED     n1 n2
           30 a RUNNING   RESCALING PREEMPTED     n2
           30 a RESCALING RESCALING NODE_RELEASED n2
           34 a RESCALING RUNNING   CONFIRMED     n2
        """,
    ),
    Script(
        "a job that loses all nodes waits, and starts on the next node",
        [(0, idle("n1", "n2")), (0, submit("a")), (30, idle()), (40, idle("n3"))],
        """
            0 a -        QUEUED   SUBMITTED
            0 a QUEUED   WAITING  ADMITTED
         0.05 a WAITING  STARTING PLAN_STARTED            n1 n2
        10.05 a STARTING RUNNING  CONFIRMED               n1 n2
           30 a RUNNING  STOPPING PREEMPTED_BELOW_MINIMUM
           30 a STOPPING STOPPING NODE_RELEASED
           30 a STOPPING STOPPING NODE_RELEASED
           30 a STOPPING WAITING  STOPPED
        40.05 a WAITING  STARTING PLAN_STARTED            n3
        50.05 a STARTING RUNNING  CONFIRMED               n3
        """,
    ),
    Script(
        "a job below its smallest scale waits for nodes",
        [(0, idle("n1", "n2")), (0, submit("a", least=2)), (30, idle("n2")), (50, idle("n2", "n3"))],
        """
            0 a -        QUEUED   SUBMITTED
            0 a QUEUED   WAITING  ADMITTED
         0.05 a WAITING  STARTING PLAN_STARTED            n1 n2
        10.05 a STARTING RUNNING  CONFIRMED               n1 n2
           30 a RUNNING  STOPPING PREEMPTED_BELOW_MINIMUM n2
           30 a STOPPING STOPPING NODE_RELEASED           n2
           30 a STOPPING WAITING  STOPPED
        50.05 a WAITING  STARTING PLAN_STARTED            n2 n3
        60.05 a STARTING RUNNING  CONFIRMED               n2 n3
        """,
    ),
    Script(
        "a node that leaves during a growth ends the growth",
        [(0, idle("n1", "n2")), (0, submit("a")), (30, idle("n1", "n2", "n3")), (35, idle("n1", "n3"))],
        """
            0 a -         QUEUED    SUBMITTED
            0 a QUEUED    WAITING   ADMITTED
         0.05 a WAITING   STARTING  PLAN_STARTED  n1 n2
        10.05 a STARTING  RUNNING   CONFIRMED     n1 n2
        30.05 a RUNNING   RESCALING PLAN_RESCALED n1 n2 n3
           35 a RESCALING RESCALING PREEMPTED     n1 n3
           35 a RESCALING RESCALING NODE_RELEASED n1 n3
           39 a RESCALING RUNNING   CONFIRMED     n1 n3
        """,
    ),
    Script(
        "a job whose trained nodes are all gone starts again from its checkpoint",
        [(0, idle("n1")), (0, submit("a")), (30, idle("n1", "n2")), (32, idle("n2"))],
        """
            0 a -         QUEUED    SUBMITTED
            0 a QUEUED    WAITING   ADMITTED
         0.05 a WAITING   STARTING  PLAN_STARTED         n1
        10.05 a STARTING  RUNNING   CONFIRMED            n1
        30.05 a RUNNING   RESCALING PLAN_RESCALED        n1 n2
           32 a RESCALING STOPPING  PREEMPTED_STATE_LOST n2
           32 a STOPPING  STOPPING  NODE_RELEASED        n2
           32 a STOPPING  WAITING   STOPPED
           32 a WAITING   STARTING  PLAN_STARTED         n2
           42 a STARTING  RUNNING   CONFIRMED            n2
        """,
    ),
    Script(
        "max_parallel jobs take part; the next one is admitted when one ends",
        [(0, idle("n1", "n2", "n3")), (0, submit("a", "b", "c")), (50, done("a"))],
        """
            0 a -        QUEUED    SUBMITTED
            0 b -        QUEUED    SUBMITTED
            0 c -        QUEUED    SUBMITTED
            0 a QUEUED   WAITING   ADMITTED
            0 b QUEUED   WAITING   ADMITTED
         0.05 a WAITING  STARTING  PLAN_STARTED n1 n2 n3
        10.05 a STARTING RUNNING   CONFIRMED    n1 n2 n3
           50 a RUNNING  COMPLETED TRAINER_DONE
           50 c QUEUED   WAITING   ADMITTED
        50.05 b WAITING  STARTING  PLAN_STARTED n1 n2 n3
        60.05 b STARTING RUNNING   CONFIRMED    n1 n2 n3
        """,
        max_parallel=2,
    ),
    Script(
        "jobs are cancelled in the queue, while they wait, and while they train",
        [(0, idle("n1")), (0, submit("a", "b", "c")), (5, cancel("c")), (20, cancel("b")), (30, cancel("a"))],
        """
            0 a -        QUEUED    SUBMITTED
            0 b -        QUEUED    SUBMITTED
            0 c -        QUEUED    SUBMITTED
            0 a QUEUED   WAITING   ADMITTED
            0 b QUEUED   WAITING   ADMITTED
         0.05 a WAITING  STARTING  PLAN_STARTED n1
            5 c QUEUED   CANCELLED CANCELLED
        10.05 a STARTING RUNNING   CONFIRMED    n1
           20 b WAITING  CANCELLED CANCELLED
           30 a RUNNING  STOPPING  CANCELLED    n1
           30 a STOPPING CANCELLED CANCELLED
        """,
        max_parallel=2,
    ),
    Script(
        "a job that fails starts again after a pause, until it has failed too often",
        [(0, idle("n1")), (0, submit("a", max_restarts=1)), (30, fail("a")), (60, fail("a"))],
        """
            0 a -        QUEUED   SUBMITTED
            0 a QUEUED   WAITING  ADMITTED
         0.05 a WAITING  STARTING PLAN_STARTED  n1
        10.05 a STARTING RUNNING  CONFIRMED     n1
           30 a RUNNING  WAITING  WORKER_FAILED
           31 a WAITING  WAITING  BACKOFF_ENDED
        31.05 a WAITING  STARTING PLAN_STARTED  n1
        41.05 a STARTING RUNNING  CONFIRMED     n1
           60 a RUNNING  FAILED   WORKER_FAILED
        """,
    ),
    Script(
        "a worker that dies is started again by its supervisor",
        [(0, idle("n1", "n2")), (0, submit("a")), (30, lose_worker("a", "n2"))],
        """
            0 a -         QUEUED    SUBMITTED
            0 a QUEUED    WAITING   ADMITTED
         0.05 a WAITING   STARTING  PLAN_STARTED n1 n2
        10.05 a STARTING  RUNNING   CONFIRMED    n1 n2
           30 a RUNNING   RESCALING WORKERS_LOST n1 n2
           34 a RESCALING RUNNING   CONFIRMED    n1 n2
        """,
    ),
    Script(
        "rank 0 that ends at once with status 0 completes its job",
        [(0, idle("n1")), (0, submit("a", "b")), (1, leave("a"))],
        """
            0 a -        QUEUED    SUBMITTED
            0 b -        QUEUED    SUBMITTED
            0 a QUEUED   WAITING   ADMITTED
         0.05 a WAITING  STARTING  PLAN_STARTED n1
            1 a STARTING COMPLETED EXITED
            1 b QUEUED   WAITING   ADMITTED
         1.05 b WAITING  STARTING  PLAN_STARTED n1
        11.05 b STARTING RUNNING   CONFIRMED    n1
        """,
        max_parallel=1,
    ),
    Script(
        "a job that reaches its target is stopped and complete",
        [(0, idle("n1")), (0, submit("a", target_samples=100)), (20, progress("a", 99)), (30, progress("a", 100))],
        """
            0 a -        QUEUED    SUBMITTED
            0 a QUEUED   WAITING   ADMITTED
         0.05 a WAITING  STARTING  PLAN_STARTED   n1
        10.05 a STARTING RUNNING   CONFIRMED      n1
           30 a RUNNING  STOPPING  TARGET_REACHED n1
           30 a STOPPING COMPLETED TARGET_REACHED
        """,
    ),
    Script(
        "a plan that names a node which has left is refused, and another one is made",
        [(0, idle("n1", "n2")), (0, submit("a")), (30, idle("n1", "n2", "n3")), (30.5, idle("n1", "n2", "n4"))],
        """
            0 a -         QUEUED    SUBMITTED
            0 a QUEUED    WAITING   ADMITTED
         1.05 a WAITING   STARTING  PLAN_STARTED  n1 n2
        11.05 a STARTING  RUNNING   CONFIRMED     n1 n2
        32.05 a RUNNING   RESCALING PLAN_RESCALED n1 n2 n4
        42.05 a RESCALING RUNNING   CONFIRMED     n1 n2 n4
        """,
        refusals="31.05 node n3 (for job j000001) is not idle",
        plan_seconds=1.0,
    ),
    Script(
        "no job spans two pools",
        [(0, idle("g1", "c1", "c2")), (0, submit("a", "b")), (30, idle("g1", "c1", "c2", "g2"))],
        """
            0 a -         QUEUED    SUBMITTED
            0 b -         QUEUED    SUBMITTED
            0 a QUEUED    WAITING   ADMITTED
            0 b QUEUED    WAITING   ADMITTED
         0.05 a WAITING   STARTING  PLAN_STARTED  c1 c2
         0.05 b WAITING   STARTING  PLAN_STARTED  g1
        10.05 a STARTING  RUNNING   CONFIRMED     c1 c2
        10.05 b STARTING  RUNNING   CONFIRMED     g1
        30.05 b RUNNING   RESCALING PLAN_RESCALED g1 g2
        40.05 b RESCALING RUNNING   CONFIRMED     g1 g2
        """,
        pools={"g1": "gpu", "g2": "gpu"},
    ),
    Script(
        "a scale that is not permitted is never commanded",
        [
            (0, idle("n1", "n2", "n3", "n4")),
            (0, submit("a", permitted_nodes=(1, 2, 4))),
            (30, idle("n1", "n2", "n3")),
            (60, idle("n1", "n2", "n3", "n5")),
        ],
        """
            0 a -         QUEUED    SUBMITTED
            0 a QUEUED    WAITING   ADMITTED
         0.05 a WAITING   STARTING  PLAN_STARTED  n1 n2 n3 n4
        10.05 a STARTING  RUNNING   CONFIRMED     n1 n2 n3 n4
           30 a RUNNING   RESCALING PREEMPTED     n1 n2
           30 a RESCALING RESCALING NODE_RELEASED n1 n2
           34 a RESCALING RUNNING   CONFIRMED     n1 n2
        60.05 a RUNNING   RESCALING PLAN_RESCALED n1 n2 n3 n5
        70.05 a RESCALING RUNNING   CONFIRMED     n1 n2 n3 n5
        """,
    ),
    Script(
        "a job is pinned to a scale while it is profiled",
        [(0, idle("n1", "n2")), (0, submit("a")), (30, pin("a", 1, until=60.0))],
        """
            0 a -         QUEUED    SUBMITTED
            0 a QUEUED    WAITING   ADMITTED
         0.05 a WAITING   STARTING  PLAN_STARTED  n1 n2
        10.05 a STARTING  RUNNING   CONFIRMED     n1 n2
        30.05 a RUNNING   RESCALING PLAN_RESCALED n1
        34.05 a RESCALING RUNNING   CONFIRMED     n1
        60.05 a RUNNING   RESCALING PLAN_RESCALED n1 n2
        70.05 a RESCALING RUNNING   CONFIRMED     n1 n2
        """,
    ),
    Script(
        "a start that is never confirmed in time fails",
        [(0, idle("n1")), (0, submit("a", max_restarts=1, limits=JobLimits(start_seconds=4.0)))],
        """
           0 a -        QUEUED   SUBMITTED
           0 a QUEUED   WAITING  ADMITTED
        0.05 a WAITING  STARTING PLAN_STARTED      n1
         4.5 a STARTING STOPPING RESCALE_TIMED_OUT n1
         4.5 a STOPPING WAITING  RESTARTED
         4.5 a WAITING  STARTING PLAN_STARTED      n1
         8.5 a STARTING STOPPING RESCALE_TIMED_OUT n1
         8.5 a STOPPING FAILED   RESCALE_TIMED_OUT
        """,
    ),
    Script(
        "a job that stalls is restarted",
        [
            (0, idle("n1")),
            (0, submit("a", limits=JobLimits(step_seconds=30.0))),
            (20, progress("a", 10, stalled=True)),
        ],
        """
            0 a -        QUEUED   SUBMITTED
            0 a QUEUED   WAITING  ADMITTED
         0.05 a WAITING  STARTING PLAN_STARTED n1
        10.05 a STARTING RUNNING  CONFIRMED    n1
           50 a RUNNING  STOPPING STALLED      n1
           50 a STOPPING WAITING  RESTARTED
           50 a WAITING  STARTING PLAN_STARTED n1
           60 a STARTING RUNNING  CONFIRMED    n1
        """,
    ),
    Script(
        "a node joins once it has been idle for the debounce",
        [(0, idle()), (0, submit("a")), (5, idle("n1")), (9, idle("n1", "n2")), (12, idle("n2"))],
        """
           0 a -        QUEUED   SUBMITTED
           0 a QUEUED   WAITING  ADMITTED
        6.05 a WAITING  STARTING PLAN_STARTED            n1
          12 a STARTING STOPPING PREEMPTED_BELOW_MINIMUM
          12 a STOPPING STOPPING NODE_RELEASED
          12 a STOPPING WAITING  STOPPED
          12 a WAITING  STARTING PLAN_STARTED            n2
          22 a STARTING RUNNING  CONFIRMED               n2
        """,
        debounce_seconds=6.0,
    ),
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.title)
def test_the_journal_is_as_expected(script: Script) -> None:
    journal, refusals = run_script(script)
    assert lines(journal) == lines(script.journal)
    assert lines(refusals) == lines(script.refusals)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.title)
def test_ticks_that_are_left_out_make_no_difference(script: Script) -> None:
    assert run_script(script, every_tick=True) == run_script(script)
