"""What another feed has been asked for, and when that is prepared here."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from malletrain.client.feeding.peer_share import PeerPause, PeerShare
from malletrain.client.feeding.schedule import Task

SECONDS = 1.0


def asked(*numbers: int) -> PeerShare:
    share = PeerShare(SECONDS, 0)
    for number in numbers:
        share.ask(Task(number, number))
    return share


@given(st.lists(st.floats(0.01, 0.4), min_size=12, max_size=60), st.booleans())
def test_one_that_sends_nothing_is_given_up_in_time(steps: list[float], idle: bool) -> None:
    share, now, since = asked(1), 0.0, None
    for step in steps:
        slow = share.is_too_slow(now, waiting=True, idle=idle)
        since = now if since is None else since
        assert slow == (now - since >= SECONDS)
        if slow:
            return
        now += step


def test_one_that_nobody_waits_for_has_time() -> None:
    share = asked(1, 2)
    assert not any(share.is_too_slow(now / 10, waiting=False, idle=True) for now in range(1000))
    assert not any(asked().is_too_slow(now / 10, waiting=True, idle=True) for now in range(1000))


def test_one_with_less_than_half_the_pace_is_given_up_and_others_are_not() -> None:
    def first_given_up(waits: int) -> int | None:
        """After how many tenths of a second, if trainings wait so many of ten of them."""
        share = asked(*range(1000))
        for tick in range(300):
            if share.is_too_slow(tick / 10, waiting=tick % 10 < waits, idle=True):
                return tick
            share.answer(tick)
        return None

    assert first_given_up(5) is None
    assert first_given_up(4) is None
    assert first_given_up(8) is not None


def test_work_that_is_to_be_done_here_is_no_debt() -> None:
    share = asked(*range(1000))
    for tick in range(300):
        assert not share.is_too_slow(tick / 10, waiting=True, idle=False)
        share.answer(tick)


def test_pauses_grow_and_begin_anew_with_a_sample() -> None:
    pause, now = PeerPause(), 0.0
    pauses = []
    for _ in range(8):
        pause.lost(now)
        pauses.append(pause.try_at - now)
        now = pause.try_at
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    pause.lost(now, refused=True)
    assert pause.try_at - now == 4.0, "it answers: its trainings may soon be near"
    pause.used()
    pause.lost(now)
    assert pause.try_at - now == 1.0


class Asking(RuleBasedStateMachine):
    """Every sample is answered once, or prepared here once."""

    def __init__(self) -> None:
        super().__init__()
        self.share = PeerShare(SECONDS, 0)
        self.open: set[int] = set()
        self.position = self.told = 0

    @rule(ahead=st.integers(0, 300))
    def ask(self, ahead: int) -> None:
        number = self.position + ahead
        if number not in self.open and self.share.may_ask(number):
            self.share.ask(Task(number, number + 1))
            self.open.add(number)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        assert self.share.answer(number) == Task(number, number + 1)
        assert self.share.answer(number) is None
        self.open.discard(number)

    @rule(by=st.integers(0, 200))
    def go_on(self, by: int) -> None:
        self.position += by
        before, self.told = self.told, self.share.position(self.position)
        assert self.told >= before

    @rule()
    def go_back(self) -> None:
        """A training that is behind has come."""
        self.position = max(0, self.position - 150)

    @rule()
    def take_back(self) -> None:
        assert [task.number for task in self.share.take_back()] == sorted(self.open)
        self.open.clear()

    @invariant()
    def is_true_to_what_it_told(self) -> None:
        assert set(self.share.asked) == self.open
        assert all(number >= self.told for number in self.open)
        assert not self.share.may_ask(self.told - 1)


TestAsking = Asking.TestCase
