"""How long growths take, as seen from what JobManager reports."""

from __future__ import annotations

from malletrain.allocator.history.boot_time_store import BootTimeStore
from malletrain.allocator.machine.cluster_cache import CachedJob
from malletrain.allocator.machine.growth_times import KEPT, BootTime, GrowthTimes
from malletrain.allocator.problem.training_environment import training_environment
from malletrain.model.job_state import JobState
from malletrain.runtime.database.migrating import open_database
from tests.support.builders import cached_job
from tests.support.clocks import ManualClock
from tests.support.postgresql import Locate


def job(commanded: str, confirmed: str, name: str = "a", **fields: object) -> CachedJob:
    """A job with nodes of one letter each."""
    return cached_job(name, *commanded, confirmed=confirmed, **fields)


def seen(*reports: tuple[float, str, str]) -> GrowthTimes:
    times = GrowthTimes()
    for now, commanded, confirmed in reports:
        times.see_all([job(commanded, confirmed)], now, snapshot=False)
    return times


def test_a_growth_lasts_from_its_command_to_the_confirmed_scale() -> None:
    times = seen((0.0, "x", "x"), (1.0, "xy", "x"), (2.0, "xy", "x"), (4.5, "xy", "xy"))
    assert times.seconds() == {"a": 3.5}


def test_starts_count_until_there_is_a_growth() -> None:
    assert seen((0.0, "", ""), (1.0, "x", ""), (9.0, "x", "x")).seconds() == {"a": 8.0}
    times = seen((0.0, "", ""), (1.0, "x", ""), (9.0, "x", "x"), (10.0, "xy", "x"), (12.0, "xy", "xy"))
    assert times.seconds() == {"a": 2.0}


def test_the_median_of_the_newest_growths_counts() -> None:
    times = seen((0.0, "x", "x"))
    for length in (50.0, 1.0, 2.0, 3.0, 4.0, 90.0):
        for now, commanded, confirmed in ((0.0, "xy", "x"), (length, "xy", "xy"), (length, "x", "x")):
            times.see_all([job(commanded, confirmed)], now, snapshot=False)
    assert times.seconds() == {"a": 3.0}


def test_shrinks_and_growths_of_which_the_begin_was_not_seen_are_not_measured() -> None:
    assert seen((0.0, "xy", "xy"), (1.0, "x", "xy"), (2.0, "x", "x")).seconds() == {}
    assert seen((0.0, "xy", "x"), (2.0, "xy", "xy")).seconds() == {}
    times = seen((0.0, "x", "x"))
    times.see_all([job("xy", "x")], 5.0, snapshot=True)  # commanded at any time since
    times.see_all([job("xy", "xy")], 6.0, snapshot=False)
    assert times.seconds() == {}


def test_jobs_that_have_ended_are_forgotten() -> None:
    reports = ((0.0, "x", "x"), (1.0, "xy", "x"), (2.0, "xy", "xy"))
    times = seen(*reports)
    times.see_all([job("xy", "xy", state=JobState.COMPLETED)], 3.0, snapshot=False)
    assert times.seconds() == {}
    times = seen(*reports)
    times.see_all([], 3.0, snapshot=True)
    assert times.seconds() == {}


def test_a_job_of_which_nothing_is_known_counts_like_the_others() -> None:
    times = seen((0.0, "x", "x"), (1.0, "xy", "x"), (3.0, "xy", "xy"), (4.0, "xyz", "xy"), (9.0, "xyz", "xyz"))
    times.see_all([job("", "", "b", state=JobState.WAITING)], 9.0, snapshot=False)
    assert times.seconds() == {"a": 3.5, "b": 3.5}
    times.see_all([job("xyz", "xyz", state=JobState.COMPLETED)], 10.0, snapshot=False)
    assert times.seconds() == {"b": 3.5}, "what has been learned stays"
    times.see_all([job("x", "", name="b")], 11.0, snapshot=False)
    times.see_all([job("x", "x", name="b")], 12.0, snapshot=False)
    assert times.seconds() == {"b": 1.0}


def pool_of(node: str) -> str:
    """Nodes in small letters are of one pool, those in capitals of another one."""
    return "slow" if node.isupper() else "fast"


def waiting(name: str, environment: str, nodes: str = "") -> CachedJob:
    return job(nodes, "", name, state=JobState.STARTING, environment=environment)


def test_a_new_job_counts_like_those_of_its_environment_in_its_pool() -> None:
    times = GrowthTimes([BootTime("venv", "fast", 2.0), BootTime("venv", "slow", 20.0), BootTime("other", "fast", 7.0)])
    jobs = [waiting("a", "venv", "xyZ"), waiting("b", "venv", "XYz"), waiting("c", "venv"), waiting("d", "new", "x")]
    times.see_all([*jobs, waiting("e", "other", "XY")], 0.0, snapshot=False)
    assert times.seconds(pool_of) == {
        "a": 2.0,  # most of its nodes are fast
        "b": 20.0,
        "c": 11.0,  # it has no nodes: its environment in all pools
        "d": 7.0,  # nothing is known of its environment: all
        "e": 7.0,  # nothing is known of its environment in that pool
    }


def test_a_growth_counts_for_each_pool_that_it_took_nodes_of() -> None:
    times = GrowthTimes()
    for now, commanded, confirmed in ((0.0, "x", "x"), (1.0, "xyZ", "x")):
        assert times.see_all([job(commanded, confirmed, environment="venv")], now, snapshot=False) == []
    measured = times.see_all([job("xyZ", "xyZ", environment="venv")], 4.0, snapshot=False, pool_of=pool_of)
    assert measured == [BootTime("venv", "", 3.0)], "the pools at the command count"
    times.see_all([job("xyZAb", "xyZ", environment="venv")], 5.0, snapshot=False, pool_of=pool_of)
    measured = times.see_all([job("xyZAb", "xyZAb", environment="venv")], 7.0, snapshot=False)
    assert measured == [BootTime("venv", "fast", 2.0), BootTime("venv", "slow", 2.0)]


def test_what_was_measured_is_known_after_a_restart(locate: Locate) -> None:
    address, clock = locate("allocator"), ManualClock()
    store = BootTimeStore(open_database(address), clock)
    store.add([])
    store.add([BootTime("venv", "fast", 3.0), BootTime("venv", "slow", 30.0)])
    store.add([BootTime("venv", "fast", 5.0)])
    restarted = GrowthTimes(BootTimeStore(open_database(address), clock).all())
    restarted.see_all([waiting("a", "venv", "x"), waiting("b", "venv", "X")], 0.0, snapshot=True)
    assert restarted.seconds(pool_of) == {"a": 4.0, "b": 30.0}


def test_the_newest_of_each_environment_and_pool_are_stored(locate: Locate) -> None:
    store = BootTimeStore(open_database(locate("allocator")), ManualClock())
    store.add([BootTime("rare", "", 99.0)])
    for number in range(KEPT + 5):
        store.add([BootTime("venv", "fast", float(number)), BootTime("venv", "slow", 0.5)])
    found = store.all()
    assert found[0] == BootTime("rare", "", 99.0), "others do not push it out"
    assert [one.seconds for one in found if one.pool == "fast"] == [float(number) for number in range(5, KEPT + 5)]
    assert len(found) == 1 + 2 * KEPT


def test_environments_differ_by_interpreter_backend_and_standby_process() -> None:
    def key(*command: str, backend: str = "horovod", cold: bool = False, **variables: str) -> str:
        return training_environment(command, "/home/ada", variables, backend, cold=cold)

    assert key("/opt/venv/bin/python", "train.py", "--lr", "1") == "/opt/venv/bin/python horovod standby"
    assert key("/opt/venv/bin/python", "-u", "other.py") == key("/opt/venv/bin/python", "train.py")
    assert key("venv/bin/python", "train.py") == "/home/ada/venv/bin/python horovod standby"
    assert key("python", "train.py", backend="", cold=True) == "python default cold"
    assert key("python", "train.py", PATH="/a") != key("python", "train.py", PATH="/b")
    assert key("bash", "-c", "train", backend="command") == "bash command standby"
    assert len(key("/" + "x" * 5000 + "/python", "train.py")) < 500
    assert key("/" + "x" * 5000 + "/python", "train.py") != key("/" + "y" * 5000 + "/python", "train.py")
