"""Trainer, sidecar and Monitor as real processes: what arrives, and what remains."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from malletrain.common.job_folder import DELIVERY_SECONDS
from malletrain.v1 import monitor_pb2
from tests.client.conftest import StartTrainer
from tests.client.peers import RecordingMonitor, is_running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes


def only_records(monitor: RecordingMonitor) -> dict[int, tuple[float, int, int, int]]:
    (records,) = monitor.records.values()
    return records


def test_every_record_arrives_once_with_its_fields(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    trainer = start_trainer(RANK="0", WORLD_SIZE="6")
    before = trainer.ask("__import__('time').time()")
    trainer.do("for i in range(1, 5001): report(32, position=32 * i)")
    trainer.do("report(7, workers=3)")
    wait_until(lambda: monitor.delivered == 5001)
    records = only_records(monitor)
    assert list(records) == list(range(1, 5002))
    assert [row[1:] for row in records.values()] == [(32, 32 * i, 6) for i in range(1, 5001)] + [(7, -1, 3)]
    times = [row[0] for row in records.values()]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] < before + 60
    assert (monitor.repeats, monitor.dropped) == (0, 0)
    request = monitor.requests[0]
    assert (request.job_id, request.slots_per_node) == ("j000001", 2)
    assert request.reporter_id.startswith(f"n017.{trainer.process.pid}.")


def test_another_interpreter_than_the_trainers_delivers(
    monitor: RecordingMonitor, start_trainer: StartTrainer, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/used\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    start_trainer(MALLETRAIN_PYTHON=str(other)).do("report(1)")
    wait_until(lambda: monitor.delivered == 1)
    assert "malletrain.client.sidecar" in (tmp_path / "used").read_text()


def test_where_that_interpreter_is_missing_the_trainers_own_delivers(
    monitor: RecordingMonitor, start_trainer: StartTrainer, tmp_path: Path
) -> None:
    start_trainer(MALLETRAIN_PYTHON=str(tmp_path / "none")).do("report(1)")
    wait_until(lambda: monitor.delivered == 1)


def test_signs_of_life_without_records(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    start_trainer().do("report(1)")
    wait_until(lambda: sum(not request.batch.samples for request in monitor.requests) >= 3)
    assert monitor.delivered == 1


def test_what_a_feed_does_for_the_trainer_is_reported(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    trainer = start_trainer()
    trainer.do("_client.note_feed(1, 2, 3, 4)")  # there is no ring yet: nothing happens
    trainer.do("report(1)")
    wait_until(lambda: monitor.delivered == 1)
    assert not any(request.HasField("feed") for request in monitor.requests)
    trainer.do("_client.note_feed(96, 32, 4_000_000, 2)")
    wait_until(lambda: monitor.requests[-1].HasField("feed"))
    assert monitor.requests[-1].feed == monitor_pb2.FeedReport(
        received_samples=96, prepared_samples=32, cpu_seconds=0.004, processes=2
    )
    trainer.do("_client.note_feed(99, 32, 4_000_000, 8, 2, ((1, 250.5), (2, 480.0)))")
    wait_until(lambda: monitor.requests[-1].feed.running == 2)
    told = monitor_pb2.FeedReport(
        received_samples=99,
        prepared_samples=32,
        cpu_seconds=0.004,
        processes=8,
        running=2,
        rates=[
            monitor_pb2.PreparingRate(processes=1, rate=250.5),
            monitor_pb2.PreparingRate(processes=2, rate=480.0),
        ],
    )
    assert monitor.requests[-1].feed == told
    trainer.do("_client.note_feed(100, 32, 4_000_000, 8, 1)")
    wait_until(lambda: monitor.requests[-1].feed.running == 1)
    assert not monitor.requests[-1].feed.rates, "a feed that has measured nothing yet has taken its place"


def test_an_outage_of_monitor_loses_nothing(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    trainer = start_trainer()
    trainer.do("for _ in range(1000): report(1)")
    wait_until(lambda: monitor.delivered == 1000)
    monitor.stop()
    trainer.do("for _ in range(5000): report(2)")
    monitor.start()
    trainer.do("for _ in range(10): report(3)")
    wait_until(lambda: monitor.delivered == 6010)
    assert [row[1] for row in only_records(monitor).values()] == [1] * 1000 + [2] * 5000 + [3] * 10
    assert monitor.dropped == 0


def test_what_was_not_acknowledged_is_sent_again(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    monitor.acknowledges = False
    trainer = start_trainer()
    trainer.do("for _ in range(100): report(1)")
    wait_until(lambda: monitor.delivered == 100)
    monitor.stop()
    monitor.acknowledges = True
    monitor.start()
    wait_until(lambda: monitor.repeats >= 100)
    assert list(only_records(monitor)) == list(range(1, 101))


def test_records_that_monitor_refuses_are_dropped_and_counted(
    monitor: RecordingMonitor, start_trainer: StartTrainer, tmp_path: Path
) -> None:
    monitor.refuses = True
    trainer = start_trainer()
    trainer.do("report(1)")
    log = tmp_path / "logs" / "sidecar.log"
    wait_until(lambda: log.exists() and "batch.samples: expected something else" in log.read_text())
    monitor.refuses = False
    trainer.do("report(2)")
    wait_until(lambda: monitor.delivered == 1)
    assert [row[1] for row in only_records(monitor).values()] == [2]
    assert monitor.dropped == 1


def test_a_ring_that_runs_over_keeps_the_newest_and_counts_the_rest(
    monitor: RecordingMonitor, start_trainer: StartTrainer
) -> None:
    trainer = start_trainer()
    trainer.do("report(1)")
    wait_until(lambda: monitor.delivered == 1)
    sidecar = trainer.ask("_client.sidecar_pid")
    os.kill(sidecar, signal.SIGSTOP)
    trainer.do("for i in range(30_000): report(1, position=i)")
    os.kill(sidecar, signal.SIGCONT)
    wait_until(lambda: monitor.delivered + monitor.dropped == 30_001)
    assert monitor.delivered > 8000
    newest = list(only_records(monitor).items())[1:]
    assert [sequence for sequence, _ in newest] == list(range(30_002 - len(newest), 30_002))
    assert all(row[2] == sequence - 2 for sequence, row in newest)


def test_a_fast_writer_never_gets_a_torn_record_delivered(
    monitor: RecordingMonitor, start_trainer: StartTrainer
) -> None:
    trainer = start_trainer()
    trainer.do("for i in range(1, 300_001): report(i, position=3 * i, workers=1 + i % 7)")
    wait_until(lambda: monitor.delivered + monitor.dropped == 300_000, timeout=30)
    assert all(row[1:] == (i, 3 * i, 1 + i % 7) for i, row in only_records(monitor).items())
    assert monitor.repeats == 0


def test_a_killed_trainer_leaves_no_record_behind(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    start_trainer().do_last("import os\nfor _ in range(1000): report(1)\nos.kill(os.getpid(), 9)")
    wait_until(lambda: monitor.delivered == 1000)


def test_the_sidecar_ends_with_the_trainer(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    trainer = start_trainer()
    trainer.do("report(1)")
    sidecar = trainer.ask("_client.sidecar_pid")
    assert os.getpgid(sidecar) == sidecar, "it outlives a kill of the trainer's group"
    assert os.getsid(sidecar) == os.getsid(trainer.process.pid)
    wait_until(lambda: monitor.delivered == 1)
    trainer.do("for _ in range(100): report(1)")
    trainer.end()
    assert trainer.process.returncode == 0
    wait_until(lambda: not is_running(sidecar))
    assert monitor.delivered == 101


def test_the_sidecar_ends_with_the_trainer_without_monitor_too(
    monitor: RecordingMonitor, start_trainer: StartTrainer, tmp_path: Path
) -> None:
    monitor.stop()
    trainer = start_trainer()
    trainer.do("report(1)")
    sidecar = trainer.ask("_client.sidecar_pid")
    trainer.end()
    assert len(list((tmp_path / "undelivered").iterdir())) == 1
    log = tmp_path / "logs" / "sidecar.log"
    wait_until(lambda: "trying again" in log.read_text(), what="a sidecar that has booted")
    os.kill(sidecar, signal.SIGTERM)
    wait_until(lambda: not is_running(sidecar))
    assert not list((tmp_path / "undelivered").iterdir())
    assert "1 records could not be delivered" in log.read_text()


def test_where_monitor_is_away_at_the_end_it_is_waited_for(
    monitor: RecordingMonitor, start_trainer: StartTrainer, tmp_path: Path
) -> None:
    trainer = start_trainer()
    trainer.do("report(1)")
    wait_until(lambda: monitor.delivered == 1)
    sidecar = trainer.ask("_client.sidecar_pid")
    monitor.stop()
    trainer.do("for _ in range(100): report(1)")
    trainer.end()
    usual_end = time.monotonic() + DELIVERY_SECONDS + 1
    wait_until(lambda: time.monotonic() > usual_end, 15, "the time that it usually has")
    assert is_running(sidecar)
    monitor.start()
    wait_until(lambda: monitor.delivered == 101)
    wait_until(lambda: not is_running(sidecar))
    assert not list((tmp_path / "undelivered").iterdir())


def test_the_sidecar_ends_on_sigterm_and_delivers_first(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    trainer = start_trainer()
    trainer.do("report(1)")
    wait_until(lambda: monitor.delivered == 1)
    sidecar = trainer.ask("_client.sidecar_pid")
    os.kill(sidecar, signal.SIGTERM)
    trainer.do("report(1)")
    wait_until(lambda: not is_running(sidecar))
    assert monitor.delivered == 2


def test_a_killed_sidecar_is_replaced_and_its_records_are_not_lost(
    monitor: RecordingMonitor, start_trainer: StartTrainer
) -> None:
    trainer = start_trainer()
    trainer.do("import time\nfrom malletrain.client.session import Client\nahead = [0]")
    trainer.do("client = Client(clock=lambda: time.time_ns() + ahead[0])\nfor _ in range(50): client.report(1)")
    wait_until(lambda: monitor.delivered == 50)
    first = trainer.ask("client.sidecar_pid")
    os.kill(first, signal.SIGSTOP)
    trainer.do("for _ in range(50): client.report(2)")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_running(first))
    trainer.do("ahead[0] = 20_000_000_000\nclient.report(3)")
    assert trainer.ask("client.sidecar_pid") not in (first, None)
    wait_until(lambda: monitor.delivered == 101)
    assert [row[1] for row in only_records(monitor).values()] == [1] * 50 + [2] * 50 + [3]
    assert monitor.dropped == 0


def test_a_forked_child_writes_nothing(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    trainer = start_trainer()
    trainer.do("import os\nreport(1)")
    trainer.do(
        "child = os.fork()\n"
        "if child == 0:\n"
        "    for _ in range(1000): report(2)\n"
        "    os._exit(0 if _client.sidecar_pid is None and not commands() else 1)\n"
        "status = os.waitpid(child, 0)[1]"
    )
    assert trainer.ask("status") == 0
    trainer.do("report(3)")
    wait_until(lambda: monitor.delivered == 2)
    assert [row[1] for row in only_records(monitor).values()] == [1, 3]
    assert len(monitor.records) == 1


def test_a_data_loader_started_before_the_first_report_writes_nothing(
    monitor: RecordingMonitor, start_trainer: StartTrainer
) -> None:
    trainer = start_trainer()
    trainer.do(
        "import multiprocessing\n"
        "loader = multiprocessing.get_context('fork').Process(target=report, args=(5,), daemon=True)\n"
        "loader.start(); loader.join()"
    )
    assert trainer.ask("loader.exitcode") == 0
    trainer.do("report(1)")
    wait_until(lambda: monitor.delivered == 1)
    assert [row[1] for row in only_records(monitor).values()] == [1]


def test_only_rank_0_reports(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    other = start_trainer(HOROVOD_RANK="1", HOROVOD_SIZE="2")
    other.do("for _ in range(10): report(1)")
    assert other.ask("_client.sidecar_pid") is None
    start_trainer(HOROVOD_RANK="0", HOROVOD_SIZE="2").do("report(2)")
    wait_until(lambda: monitor.delivered == 1)
    assert next(iter(only_records(monitor).values()))[1:] == (2, -1, 2)


def test_commands_come_once_each(monitor: RecordingMonitor, start_trainer: StartTrainer) -> None:
    trainer = start_trainer()
    assert trainer.ask("[commands(), should_commit(), should_stop()]") == [[], False, False]
    trainer.do("report(1)")
    commit = monitor_pb2.Command(id="c1", type=monitor_pb2.COMMAND_TYPE_COMMIT)
    monitor.pending = [commit, monitor_pb2.Command(id="c2", type=monitor_pb2.COMMAND_TYPE_RESCALE_COMING, nodes=3)]
    wait_until(lambda: trainer.ask("should_commit()"))
    assert trainer.ask("[should_commit(), should_stop()]") == [False, False]
    listing = "[[command.id, command.type.name, command.nodes] for command in commands()]"
    assert trainer.ask(listing) == [["c1", "COMMIT", 0], ["c2", "RESCALE_COMING", 3]]
    assert trainer.ask(listing) == []
    # The same command again is not a new one; a type from the future is none for this client.
    unknown = monitor_pb2.Command.FromString(b"\x0a\x02c3\x10\x63")
    stop = monitor_pb2.Command(id="c4", type=monitor_pb2.COMMAND_TYPE_STOP)
    monitor.pending = [commit, unknown, stop]
    wait_until(lambda: trainer.ask("should_stop()"))
    assert trainer.ask(listing) == [["c4", "STOP", 0]]
    assert trainer.ask("[should_commit(), should_commit(), should_stop()]") == [True, False, True]
    asked = Path(trainer.ask("current_job().directory.as_posix()")) / "stop-requests"
    assert [path.name for path in asked.iterdir()] == [str(trainer.ask("__import__('os').getsid(0)"))]


def test_sigterm_asks_to_commit_and_stop_but_not_in_forked_children(start_trainer: StartTrainer) -> None:
    trainer = start_trainer()
    assert trainer.ask("install_signal_handler()") is True
    trainer.do(
        "import os, signal\nchild = os.fork()\n"
        "if child == 0:\n    os.kill(os.getpid(), signal.SIGTERM)\n    os._exit(0)\n"
        "status = os.waitpid(child, 0)[1]"
    )
    assert trainer.ask("os.WTERMSIG(status)") == signal.SIGTERM
    assert trainer.ask("should_stop()") is False
    trainer.process.terminate()
    wait_until(lambda: trainer.ask("should_stop()"))
    assert trainer.ask("[should_commit(), should_commit(), should_stop()]") == [True, False, True]
