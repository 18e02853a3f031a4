"""A second try for tests that start real processes, which may miss a deadline on a crowded machine.

No other test gets one: where nothing but the code decides, a failure that does not come back is a race to mend. The
second try is on fresh fixtures, and the summary lists it as RERUN with what went wrong at first. `-p no:rerunfailures`
takes it away from all.
"""

from __future__ import annotations

import pytest

MARKERS = frozenset(
    {
        "browser",
        "containers",
        "demo",
        "faulty_scripts",
        "fleet",
        "frameworks",
        "horovod",
        "long",
        "manual",
        "netns",
        "pbs",
        "processes",
        "slurm",
        "system",
        "training",
        "upgrade",
    }
)
"""Those of tests with real services, agents, supervisors, trainings, schedulers or browsers."""


def pytest_configure(config: pytest.Config) -> None:
    """Show what went wrong at first: in the process that prints the summary, which collects no tests."""
    config.option.rerun_show_tracebacks = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Allow each test with real processes one more try."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if not MARKERS.isdisjoint(marker.name for marker in item.iter_markers()):
                item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the fixtures of modules and of the session before a second try, which starts them again.

    Otherwise it would find the jobs that the first one has left, and fail for them. pytest-rerunfailures keeps those
    fixtures for later tests.
    """
    if getattr(item, "execution_count", 1) > 1:
        from pytest_rerunfailures import suspended_finalizers

        fixtures = item.session._setupstate
        fixtures.stack.update(suspended_finalizers)
        suspended_finalizers.clear()
        fixtures.teardown_exact(None)
