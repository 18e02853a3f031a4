"""The worker that failed first is found among those that it took with it. Texts are of torch 2.13 and Horovod 0.28."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from malletrain.common.error_texts import MAX_LINE_LENGTH, MAX_LINES, read_error
from malletrain.supervisor.workers.failure_watch import FailureWatch, LogTails
from malletrain.supervisor.workers.root_cause import MemberEnd, failure_of, root_cause
from malletrain.supervisor.workers.slot import Slot
from malletrain.supervisor.workers.worker_exit import Consequence, WorkerExit

OWN = """rank 2 of 3
[rank2]: Traceback (most recent call last):
[rank2]:   File "train.py", line 5, in <module>
[rank2]:     raise ValueError("label 17 is out of range in sample 4242")
[rank2]: ValueError: label 17 is out of range in sample 4242
"""
LABEL = "ValueError: label 17 is out of range in sample 4242"
PEER = """[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 6, in <module>
[rank0]:     dist.all_reduce(torch.ones(1))
[rank0]:     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
[rank0]:   File "torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank0]:     work.wait()
[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1
"""
HOROVOD = """Traceback (most recent call last):
  File "horovod/torch/mpi_ops.py", line 1285, in synchronize
    mpi_lib.horovod_torch_wait_and_clear(handle)
RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 30, in <module>
    raise TrainingFailed("step 7") from None
TrainingFailed: step 7
"""
LAUNCHER = """E1125 16:34:07.185000 13396 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)
Traceback (most recent call last):
  File "bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
ACCELERATE = """Traceback (most recent call last):
  File "accelerate/commands/launch.py", line 1000, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/usr/bin/python3', 'train.py']' returned non-zero exit status 1.
"""
OTHER_COMMAND = ACCELERATE.replace("python3", "git")
CLEANING = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
    rows = table["labels"]
KeyError: 'labels'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 11, in <module>
    dist.barrier()
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited
"""
ABORT = """terminate called after throwing an instance of 'gloo::IoException'
  what():  [gloo/transport/tcp/pair.cc:578] Connection closed by peer [127.0.0.1]:26170
"""
NCCL = """[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)
[rank1]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error
"""
SYNTAX = """  File "/home/ada/train.py", line 3
    def train(:
              ^
SyntaxError: invalid syntax
"""


def end(code: int, text: str = "", host: str = "n1", at: float = 0.0, **flags: bool) -> MemberEnd:
    rescued = flags.pop("rescued", False)
    ended = WorkerExit(Slot(host, 0), 42, code, started=True, going=True, killed=False, hung=False)
    return MemberEnd(replace(ended, **flags), at, read_error(text), rescued)


@pytest.mark.parametrize(
    ("text", "error", "is_own", "is_consequence"),
    [
        (OWN, LABEL, True, False),
        (
            OWN + "[W] destroy_process_group() was not called\n",
            "ValueError: label 17 is out of range in sample 4242",
            True,
            False,
        ),
        (CLEANING, "KeyError: 'labels'", True, False),
        (OWN + LAUNCHER, LABEL, True, False),
        (OWN + ACCELERATE, LABEL, True, False),
        (LAUNCHER, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", True, False),
        (
            OWN + ACCELERATE.replace("python3", "git"),
            ACCELERATE.splitlines()[-1].replace("python3", "git"),
            True,
            False,
        ),
        (HOROVOD, "TrainingFailed: step 7", False, True),
        (SYNTAX, "SyntaxError: invalid syntax", True, False),
        ("no such dataset: imagenet\n", "no such dataset: imagenet", False, False),
        ("", "", False, False),
    ],
)
def test_what_the_last_lines_say(text: str, error: str, is_own: bool, is_consequence: bool) -> None:
    found = read_error(text)
    assert (found.error, found.is_own, found.is_consequence) == (error, is_own, is_consequence)
    assert not error or found.lines[-1] == error, "nothing follows the error"


@pytest.mark.parametrize("text", [PEER, ABORT, NCCL, HOROVOD])
def test_what_libraries_say_of_others_is_no_error_of_ones_own(text: str) -> None:
    found = read_error(text)
    assert found.is_consequence
    assert not found.is_own


def test_lines_are_cleaned_and_bounded() -> None:
    hostile = "\x1b[2J\x1b]0;title\x07ValueError: \x00\u202e" + "x" * 10_000
    found = read_error("\n".join(["line"] * 1000 + ["step 1\rstep 2\r", hostile]))
    assert len(found.lines) == MAX_LINES
    assert len(found.error) == MAX_LINE_LENGTH
    assert found.error.startswith("ValueError:   x")
    assert found.lines[-2] == "step 2"
    assert "\x1b" not in "".join(found.lines)


@pytest.mark.parametrize(
    "ends",
    [
        [end(1, PEER), end(1, OWN, "n3", 0.5), end(-9, PEER, "n2", 0.5, killed=True, rescued=True)],
        [end(1, OWN, "n3"), end(1, PEER, "n2")],
        [end(1, PEER), end(-9, OWN, "n3", 1.0, killed=True, rescued=True)],
        [end(-signal.SIGABRT, ABORT), end(-signal.SIGSEGV, "", "n3")],
        [end(-signal.SIGABRT, ABORT), end(1, "", "n3")],
        [end(1, PEER), end(1, NCCL, "n2"), end(-9, "", "n3", out_of_memory=True)],
        [end(1, "something new in a library\n"), end(-9, "", "n3", 0.1)],
        [end(1, PEER), end(-9, "", "n3", 40.0, killed=True, rescued=True, lost=True)],
        [end(1, PEER), end(-9, "", "n3", killed=True)],
        [end(1, OWN, "n3"), end(-9, "", "n2", 5.0, killed=True, hung=True)],
        [end(1, OWN, "n3"), end(143, "", "n2", 0.0, rescued=True)],
    ],
)
def test_the_worker_that_failed_first_is_found(ends: list[MemberEnd]) -> None:
    assert root_cause(ends).ended.slot.host == "n3"


def test_what_a_failure_says() -> None:
    found = failure_of([end(1, PEER), end(1, OWN, "n3")], 3, 12.0)
    assert found.message == "worker on n3: exit status 1: ValueError: label 17 is out of range in sample 4242"
    assert found.by_script
    assert not found.taken
    assert failure_of([end(-9, out_of_memory=True)], 1, 5.0).message == (
        "worker on n1: killed by signal 9, the node was out of memory"
    )
    fault = failure_of([end(-signal.SIGSEGV, "step 7\n")], 1, 5.0)
    assert fault.message == "worker on n1: killed by signal 11 (segmentation fault)"
    assert fault.by_script
    killed = failure_of([end(-9)], 1, 5.0)
    assert not killed.taken
    assert not killed.by_script, "somebody has killed it: tried again at once, but not for ever"
    assert failure_of([end(-9, lost=True)], 1, 5.0).taken


def test_only_what_a_worker_wrote_itself_is_read(tmp_path: Path) -> None:
    log = tmp_path / "n1.0.log"
    log.write_text(OWN)
    tails = LogTails(tmp_path)
    tails.begin(Slot("n1", 0))
    assert tails.error_text(Slot("n1", 0)).error == ""
    with log.open("a") as file:
        file.write("killed\n")
    assert tails.error_text(Slot("n1", 0)).error == "killed"
    assert tails.error_text(Slot("n2", 0)).error == "", "no log"


def watch(tmp_path: Path, left: int) -> FailureWatch:
    found = FailureWatch(LogTails(tmp_path), left)
    found.begin_generation(2, 0.0)
    return found


def consequence_of(
    found: FailureWatch, code: int, now: float, *, goes_on: bool = False, **flags: bool
) -> Consequence | None:
    found.note_end(end(code, **flags).ended, now, failed=True, rescued=False)
    verdict = found.settle(now, goes_on=goes_on)
    return None if verdict is None else verdict.consequence


def test_an_exit_by_the_script_ends_the_supervisor_at_once(tmp_path: Path) -> None:
    found = watch(tmp_path, 3)
    assert found.settle(1.0) is None, "nothing has failed"
    assert consequence_of(found, 1, 5000.0) is Consequence.FAIL
    assert found.newest is not None
    assert (found.newest.scale, found.newest.seconds, found.newest.count) == (2, 5000.0, 1)
    assert consequence_of(watch(tmp_path, 3), -signal.SIGBUS, 1.0) is Consequence.FAIL


def test_a_kill_that_comes_again_and_again_is_the_jobs_too(tmp_path: Path) -> None:
    found = watch(tmp_path, 3)
    kills = []
    for second in range(4):
        found.begin_generation(2, float(second))
        kills.append(consequence_of(found, -9, second + 0.5))
    assert kills == [Consequence.NOTE] * 3 + [Consequence.FAIL]
    assert found.newest is not None
    assert found.newest.count == 4
    assert consequence_of(watch(tmp_path, 0), -9, 1.0) is Consequence.FAIL
    found = watch(tmp_path, 0)
    assert consequence_of(found, -9, 1.0, lost=True) is Consequence.NOTE, "its node was lost"


def test_a_kill_after_a_long_good_run_is_the_first_again(tmp_path: Path) -> None:
    found = watch(tmp_path, 1)
    assert consequence_of(found, -9, 1.0) is Consequence.NOTE
    found.begin_generation(2, 1.0)
    assert consequence_of(found, -9, 700.0) is Consequence.NOTE
    found.begin_generation(2, 700.0)
    assert consequence_of(found, -9, 701.0) is Consequence.FAIL


def test_a_newcomer_that_fails_each_time_does_not_end_those_that_train(tmp_path: Path) -> None:
    found = watch(tmp_path, 0)
    for second in range(9):
        found.note_end(end(1).ended, float(second), failed=True, rescued=False, newcomer=True)
        verdict = found.settle(float(second), goes_on=True)
        assert verdict is not None
        assert verdict.consequence is Consequence.NOTE


def test_where_others_go_on_the_script_may_fail_as_often_as_it_may_be_restarted(tmp_path: Path) -> None:
    found = watch(tmp_path, 2)
    failures = [consequence_of(found, 1, float(second), goes_on=True) for second in range(3)]
    assert failures == [Consequence.NOTE, Consequence.NOTE, Consequence.FAIL]
    assert consequence_of(watch(tmp_path, 0), -9, 1.0, goes_on=True) is Consequence.NOTE
