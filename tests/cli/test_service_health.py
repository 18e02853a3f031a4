"""When `malletrain up` takes a service for hung: the counting, and questions to a real server that is stopped."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from malletrain.cli.operate.service_health import Activity, HealthAnswer, HealthQuestions, Silence, activity_of
from malletrain.runtime.peer import Peer
from tests.support.channels import stand_in_authority, stand_in_credentials
from tests.support.waiting import wait_until

LIMIT = 12.0


def turns(count: int, *answers: HealthAnswer | None, seconds: float = 0.1, busy: bool = False) -> Silence:
    """The silence after some turns; the last ones bring these answers."""
    silence = Silence()
    for turn in range(count):
        late = turn - (count - len(answers))
        silence = silence.after_turn(seconds, answers[late] if late >= 0 else None, busy=busy)
    return silence


def test_a_service_has_hung_after_the_time_and_several_questions() -> None:
    none = HealthAnswer.NONE
    assert turns(121, none, none, none).is_too_long(LIMIT)
    assert not turns(121, none, none).is_too_long(LIMIT)
    assert not turns(100, none, none, none).is_too_long(LIMIT)


@pytest.mark.parametrize("answer", [HealthAnswer.SERVING, HealthAnswer.ALIVE])
def test_any_answer_ends_the_silence(answer: HealthAnswer) -> None:
    assert turns(500, HealthAnswer.NONE, HealthAnswer.NONE, HealthAnswer.NONE, answer) == Silence()


def test_a_busy_service_has_five_times_as_long() -> None:
    none = HealthAnswer.NONE
    assert not turns(590, none, none, none, busy=True).is_too_long(LIMIT)
    assert turns(610, none, none, none, busy=True).is_too_long(LIMIT)


@pytest.mark.parametrize("seconds", [5.0, 3600.0])
def test_time_in_which_nobody_could_ask_does_not_count(seconds: float) -> None:
    assert not turns(20, HealthAnswer.NONE, HealthAnswer.NONE, HealthAnswer.NONE, seconds=seconds).is_too_long(LIMIT)


def test_work_is_seen_by_the_state_and_by_cpu_time() -> None:
    before = Activity("S", 100)
    assert not Activity("S", 100).is_busy(before)
    assert not Activity("T", 100).is_busy(before)
    assert Activity("S", 101).is_busy(before)
    assert Activity("R", 100).is_busy(before)
    assert Activity("D", 100).is_busy(before)
    assert not Activity("S", 100).is_busy(None)


def test_the_activity_of_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
        try:
            begin = activity_of(spinning.pid)
            assert begin is not None
            wait_until(lambda: (found := activity_of(spinning.pid)) is not None and found.is_busy(begin))
            spinning.send_signal(signal.SIGSTOP)
            wait_until(lambda: (found := activity_of(spinning.pid)) is not None and found.state == "T")
        finally:
            spinning.kill()
    assert activity_of(spinning.pid) is None


@pytest.fixture
def asked() -> Iterator[tuple[HealthServicer, HealthQuestions]]:
    """Health checks of a server, and questions to it."""
    servicer = HealthServicer()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_secure_port("127.0.0.1:0", stand_in_credentials())
    server.start()
    questions = HealthQuestions(Peer("monitor", f"127.0.0.1:{port}", stand_in_authority(), "monitor"))
    yield servicer, questions
    questions.close()
    server.stop(None).wait()


def next_answer(questions: HealthQuestions, *, served: bool = True) -> HealthAnswer:
    """What comes of the next question."""
    found: list[HealthAnswer | None] = []

    def look() -> HealthAnswer | None:
        found.append(questions.look(time.monotonic(), served=served))
        return found[-1]

    return _present(wait_until(look, 10, "an answer"))


def _present(answer: HealthAnswer | None) -> HealthAnswer:
    assert answer is not None
    return answer


def test_a_service_that_serves_and_one_that_drains(asked: tuple[HealthServicer, HealthQuestions]) -> None:
    servicer, questions = asked
    servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    assert next_answer(questions, served=False) is HealthAnswer.SERVING
    servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert next_answer(questions) is HealthAnswer.ALIVE


def silent_listener() -> socket.socket:
    """Connections are taken by the kernel, and by nobody else."""
    return socket.create_server(("127.0.0.1", 0))


def closed_port() -> socket.socket:
    """Nobody listens there."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


@pytest.mark.parametrize("open_port", [silent_listener, closed_port])
def test_a_service_that_does_not_answer(open_port: Callable[[], socket.socket]) -> None:
    with open_port() as bound:
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        questions = HealthQuestions(Peer("monitor", address, stand_in_authority(), "monitor"))
        assert [next_answer(questions) for _ in range(2)] == [HealthAnswer.NONE, HealthAnswer.NONE]
        questions.close()


def test_who_is_not_known_by_the_certificates_is_alive(asked: tuple[HealthServicer, HealthQuestions]) -> None:
    _, questions = asked
    other = HealthQuestions(Peer("profiler", questions.peer.address, stand_in_authority(), "no-such-role"))
    assert next_answer(other) is HealthAnswer.ALIVE
    other.close()


def test_nothing_is_known_without_a_certificate() -> None:
    questions = HealthQuestions(Peer("monitor", "127.0.0.1:1", stand_in_authority().parent / "missing.pem", "monitor"))
    assert questions.look(0.0, served=False) is None
    assert questions.look(10.0, served=True) is None
