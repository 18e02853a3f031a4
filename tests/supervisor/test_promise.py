from __future__ import annotations

from malletrain.supervisor.workers.promise import Promise

TRAINS = (("n1", 1),)
WIDE = (("n1", 1), ("n2", 1), ("n3", 1))
FEWER = WIDE[:2]
BASIS = TRAINS, WIDE


def test_nothing_is_promised_before_workers_have_booted() -> None:
    promise = Promise().after_look(BASIS, (), 10.0)
    assert promise.hosts == ()
    assert promise.after_look(BASIS, WIDE, 12.0).hosts == WIDE


def test_what_is_promised_stays_as_long_as_the_same_hosts_train_and_are_commanded() -> None:
    promise = Promise().after_look(BASIS, WIDE, 10.0)
    assert promise.after_look(BASIS, (), 500.0) == promise
    assert promise.after_look((FEWER, WIDE), WIDE, 501.0).since == 501.0
    assert promise.after_look((TRAINS, FEWER), FEWER, 501.0).hosts == FEWER


def test_fewer_hosts_are_promised_for_a_while() -> None:
    for promise in (
        Promise().after_look(BASIS, FEWER, 50.0),
        Promise().after_look(BASIS, WIDE, 10.0).narrowed(FEWER, 50.0),
    ):
        assert promise.hosts == FEWER
        assert promise.after_look(BASIS, WIDE, 79.9) == promise
        assert promise.after_look(BASIS, WIDE, 80.0).hosts == WIDE


def test_who_still_prepares_is_not_waited_for_for_ever() -> None:
    promise = Promise().after_look(BASIS, WIDE, 10.0)
    assert promise.is_patient(309.0)
    assert not promise.is_patient(310.0)
