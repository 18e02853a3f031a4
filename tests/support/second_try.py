"""A test that fails is tried once more, on fresh fixtures, and listed as RERUN with what went wrong at first.

Most tests start real processes, which may miss a deadline on a crowded machine. `-p no:rerunfailures` takes it away.
"""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Show what went wrong at first: in the process that prints the summary, which collects no tests."""
    config.option.rerun_show_tracebacks = True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Allow each test one more try."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
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
