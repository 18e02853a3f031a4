"""Where skips are strict, a test that skips for a reason that is not listed here fails the run.

They are with STRICT_SKIPS=1, which `.ci/run` sets: a test that never runs in CI is none. Elsewhere tests
skip as they like, so that `make test` passes on any machine.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from malletrain.client.feeding.sizing import usable_cores
from tests.support.shared import SHARED

STRICT = "STRICT_SKIPS"
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ExpectedSkip:
    """A reason to skip that is accepted where skips are strict.

    Attributes:
        pattern: Matches the whole reason.
        why: Which machines lack what the tests need, and why CI goes on without.
        is_lacking: Whether this machine lacks it: of one that doesn't the skip is a fault.
    """

    pattern: str
    why: str
    is_lacking: Callable[[], bool] = lambda: True


def _no_program(*names: str) -> Callable[[], bool]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return lambda: any(shutil.which(name, path=path) is None for name in names)


def _is_not_root() -> bool:
    return os.geteuid() != 0


def _has_no_shared() -> bool:
    return not SHARED.exists()


def _has_no_gpu() -> bool:
    return not Path("/dev/nvidia0").exists()


APT = "CI installs it where there is apt-get and a mirror answers"
APART = "CI runs these tests by a target of their own, in an environment that has it"
KERNEL = "not every kernel has it, and containers may not use it"

EXPECTED = (
    ExpectedSkip("(only root can|needs root,) .*", "CI may run as any account", _is_not_root),
    ExpectedSkip("others are told that they are not root", "CI may run as any account", _is_not_root),
    ExpectedSkip("root may write everywhere", "CI may run as root, as in a container", lambda: not _is_not_root()),
    ExpectedSkip("needs sshd: .*", APT, _no_program("sshd")),
    ExpectedSkip("MUNGE is not installed: .*", APT, _no_program("munge", "unmunge", "munged")),
    ExpectedSkip("needs Debian's chromium .*", APT, _no_program("chromium")),
    ExpectedSkip("needs (prometheus|promtool): apt-get .*", APT, _no_program("prometheus", "promtool")),
    ExpectedSkip("systemd-analyze is not installed", APT, _no_program("systemd-analyze")),
    ExpectedSkip("systemd is not installed", APT, lambda: not Path("/lib/systemd/systemd").exists()),
    ExpectedSkip("no PostgreSQL server is installed here", APT, lambda: not any(Path("/usr/lib").glob("postgresql/*"))),
    ExpectedSkip("needs zsh", "completion is tried in bash as well", _no_program("zsh")),
    ExpectedSkip("needs fish", "completion is tried in bash as well", _no_program("fish")),
    ExpectedSkip("needs Debian's slurmctld, .*", APT, _no_program("slurmctld", "slurmd", "sinfo", "munged")),
    ExpectedSkip("(slurmctld|slurmd|sinfo|munged) is not installed .*", "`make test-slurm` installs it, where it can"),
    ExpectedSkip(
        "needs OpenPBS in .*", "`make test-pbs` unpacks it, where it can", lambda: not Path("/opt/pbs/sbin").exists()
    ),
    ExpectedSkip("this Slurm checks (no )?accounts.*", "releases differ; `make test-slurm` runs old and new ones"),
    ExpectedSkip("pbs_cgroups needs .*", KERNEL, lambda: not Path("/sys/fs/cgroup/devices").exists()),
    ExpectedSkip("needs root and iproute2", APT, lambda: _is_not_root() or _no_program("ip")()),
    ExpectedSkip("network namespaces can't be made here, .*", KERNEL),
    ExpectedSkip("this machine lets nobody make cgroups here.*", KERNEL),
    ExpectedSkip("needs two processor cores", "a feed prepares with one process there", lambda: usable_cores() < 2),
    ExpectedSkip("no memory cgroup can be made here: .*", KERNEL),
    ExpectedSkip("this machine has no IPv6.*", KERNEL),
    ExpectedSkip("may not mount a file system", "only root can, and not in every container"),
    ExpectedSkip("only root can mount a disk of its own", "CI may run as any account", _is_not_root),
    ExpectedSkip("the kernel has no (keyrings|signed TCP connections)", KERNEL),
    ExpectedSkip("this kernel lets no process of a user look into another one", KERNEL),
    ExpectedSkip("this machine has loopback addresses only", "a machine without a network"),
    ExpectedSkip("needs .*, which is not beside this checkout .*", "traces are no part of a clone", _has_no_shared),
    ExpectedSkip(
        "needs (accelerate|lightning|transformers|wandb|mlflow-skinny|tensorboard): make test-frameworks",
        APART,
    ),
    ExpectedSkip("needs deepspeed: make test-deepspeed", APART),
    ExpectedSkip("needs litdata", APART),
    ExpectedSkip("needs an NVIDIA GPU that torch can use", "CI's machines have none", _has_no_gpu),
    ExpectedSkip("needs .*, which this clone does not have .*", "a shallow clone lacks the last release"),
    ExpectedSkip("needs a git .*", "an unpacked archive has no history", lambda: not (ROOT / ".git").exists()),
    ExpectedSkip(".* can run no Python with the packages of this one", "a home that is closed to other accounts"),
    ExpectedSkip("there is no .*, and others may not be able to run ours", "a home that is closed to other accounts"),
    ExpectedSkip("there is no mkfs.ext4 or no mount", "small images lack them", _no_program("mkfs.ext4", "mount")),
    ExpectedSkip("needs docker with compose", "`make test-containers` skips where there is no engine"),
    ExpectedSkip("the local Slurm is root's here, .*", "CI may run as any account", _is_not_root),
    ExpectedSkip("(no container engine answers|no image of .*)", "`make test-containers` builds them, where it can"),
)


def unexpected(reason: str, expected: Iterable[ExpectedSkip] = EXPECTED) -> bool:
    """Whether a reason is not listed, or not true of this machine."""
    return not any(re.fullmatch(skip.pattern, reason, re.DOTALL) and skip.is_lacking() for skip in expected)


class StrictSkips:
    """Fails a run for skips that are not expected, and lists them."""

    def __init__(self) -> None:
        self.unexpected: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if unexpected(reason):
                self.unexpected[report.nodeid] = reason

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unexpected and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.unexpected:
            terminalreporter.section("skips that are not expected (tests/support/skips.py)", red=True)
            for test, reason in self.unexpected.items():
                terminalreporter.line(f"{test}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Look at skips where they are strict: in the process that hears of all tests, which is none of xdist's workers."""
    if os.environ.get(STRICT) == "1" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(StrictSkips(), "strict-skips")
