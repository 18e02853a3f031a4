"""What `up` makes of services that end: how soon they are started again, and when it gives up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from malletrain.cli.operate.service_health import HealthAnswer
from malletrain.cli.operate.service_runner import ServiceRunner
from malletrain.cli.shared.settings import AllSettings
from malletrain.runtime.errors import MalleTrainError


class Process:
    """A process that ends when told so."""

    pid = 0
    returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.returncode = -9


class Forks:
    """Starts nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.started: dict[str, list[Process]] = {}

    def start(self, command: Sequence[str], log: int) -> Process:
        process = Process()
        self.started.setdefault(command[5], []).append(process)
        return process


class Questions:
    """Answers at once while the service is to answer."""

    answer: HealthAnswer | None = None

    def look(self, now: float, *, served: bool) -> HealthAnswer | None:
        return self.answer

    def close(self) -> None:
        pass


class Driver:
    """A runner on a clock of its own."""

    def __init__(self, folder: Path) -> None:
        self.now, self.forks = 0.0, Forks()
        forks: Any = self.forks
        settings = AllSettings(state_dir=folder)
        self.runner = ServiceRunner(settings, None, lambda: None, forks, lambda: self.now)
        self.questions = {service.name: Questions() for service in self.runner.services}
        for service in self.runner.services:
            questions: Any = self.questions[service.name]
            service.questions = questions
        self.runner.start()

    def answers(self, *names: str) -> None:
        for name, questions in self.questions.items():
            questions.answer = HealthAnswer.SERVING if name in names else None

    def turn(self, seconds: float) -> None:
        self.now += seconds
        self.runner.check()

    def end(self, name: str) -> None:
        self.forks.started[name][-1].returncode = 1

    def pause(self, name: str) -> float:
        """How long a service that has just ended waits for its next start, in seconds."""
        self.end(name)
        before, begin = len(self.forks.started[name]), self.now
        self.turn(0.0)
        while len(self.forks.started[name]) == before:
            self.turn(0.1)
        return self.now - begin


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_one_that_ends_soon_after_each_answer_waits_longer_each_time(driver: Driver) -> None:
    driver.answers(*driver.questions)
    pauses = []
    for _ in range(4):
        driver.turn(1.0)
        pauses.append(driver.pause("monitor"))
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]
    driver.turn(60.0)
    driver.turn(60.0)
    assert driver.pause("monitor") == pytest.approx(pauses[0], abs=0.15)


def test_one_that_has_answered_is_not_given_up_for_what_the_others_take(driver: Driver) -> None:
    driver.answers("monitor")
    for _ in range(5):
        driver.turn(1.0)
        driver.pause("monitor")
    driver.answers()  # it has ended once since its last answer
    driver.pause("monitor")
    driver.end("monitor")
    with pytest.raises(MalleTrainError, match="monitor does not start"):
        driver.turn(0.0)


def test_one_that_is_started_again_and_never_answers_has_hung(driver: Driver) -> None:
    for questions in driver.questions.values():
        questions.answer = HealthAnswer.NONE
    for _ in range(1000):
        driver.turn(0.5)
    assert [len(processes) for processes in driver.forks.started.values()] == [1] * 5, (
        "a first start takes as long as it may"
    )
    driver.answers(*driver.questions)
    driver.turn(0.5)
    driver.pause("monitor")
    driver.questions["monitor"].answer = HealthAnswer.NONE
    begin, again = driver.now, driver.forks.started["monitor"][-1]
    while again.poll() is None:
        driver.turn(0.5)
    limit = AllSettings().hang_seconds
    assert limit + 50.0 < driver.now - begin < limit + 70.0
