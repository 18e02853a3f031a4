"""`qsub … malletrain-job` on a real OpenPBS: a job of the site's queue and ours live and end together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.pbs.cluster import PbsCluster, missing, pbs_cluster
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed
from tests.system.test_mirrored import ENDINGS, SETTINGS, arguments

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]

SECONDS = 180.0
WRAPPER = Path(__file__).parents[2] / "deploy/pbs/malletrain-job"


@pytest.fixture(scope="module")
def pbs() -> Iterator[PbsCluster]:
    if reason := missing():
        pytest.skip(reason)
    with pbs_cluster(1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def system(pbs: PbsCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Services that the node reaches at the address of this machine."""
    with deployed(tmp_path_factory.mktemp("mirrored"), SETTINGS, host=pbs.head, seconds=SECONDS) as deployment:
        yield deployment


class SiteJob:
    """A job of PBS that mirrors one of ours."""

    def __init__(self, pbs: PbsCluster, system: Deployment, folder: Path, words: Sequence[str]) -> None:
        self._pbs = pbs
        self._out, self._errors = folder / "out", folder / "errors"
        launcher = folder / "malletrain"
        launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m malletrain.cli.main "$@"\n', encoding="utf-8")
        launcher.chmod(0o755)
        # As the documentation has it: the job's program is the wrapper, and what follows are its words.
        how = ["-q", "main", "-r", "n", "-k", "doe", "-o", str(self._out), "-e", str(self._errors)]
        done = subprocess.run(
            ["qsub", *how, "-v", f"MALLETRAIN={launcher}", "--", str(WRAPPER), *words],
            env=os.environ | pbs.environment,
            cwd=system.folder,  # whose malletrain.toml the wrapper finds again
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.strip()

    def says(self, text: str) -> bool:
        """Whether the mirror has told that."""
        return text in self.told

    @property
    def told(self) -> str:
        return self._errors.read_text() if self._errors.exists() else ""

    def await_training(self) -> None:
        """Wait until our job runs.

        Raises:
            AssertionError: the site's job ended before; says what the mirror told.
        """
        wait_until(lambda: self.says("RUNNING") or self.ended(), SECONDS, "a running job")
        assert self.says("RUNNING"), self.told

    @property
    def job_id(self) -> str:
        """Of our job."""
        return self._out.read_text().split()[0]

    def shown(self) -> str:
        """What PBS shows of it, also when it has ended."""
        return self._pbs.run("qstat", "-x", "-f", self.id)

    def ended(self) -> bool:
        return "job_state = F" in self.shown()


@pytest.mark.parametrize(("ending", "status", "ours", "theirs"), ENDINGS)
def test_a_job_of_pbs_ends_as_ours_does(
    pbs: PbsCluster, system: Deployment, tmp_path: Path, ending: str, status: int, ours: str, theirs: str
) -> None:
    del theirs  # PBS knows only a status
    folder = tmp_path / "job of ann's & $HOME"
    site = SiteJob(pbs, system, tmp_path, arguments(folder, status=int(ending == "fail")))
    try:
        site.await_training()
        assert "job_state = R" in site.shown()
    finally:
        (folder / "go").touch()
    wait_until(site.ended, SECONDS, "the end of the site's job")
    assert f"Exit_status = {status}" in site.shown()
    assert system.state(site.job_id) == ours


def test_qdel_cancels_our_job(pbs: PbsCluster, system: Deployment, tmp_path: Path) -> None:
    site = SiteJob(pbs, system, tmp_path, arguments(tmp_path / "job"))
    site.await_training()
    pbs.run("qdel", site.id)
    wait_until(lambda: system.state(site.job_id) == "CANCELLED", SECONDS, "the end of our job")
    wait_until(site.ended, SECONDS, "the end of the site's job")
    assert site.says(f"so that {site.job_id} is cancelled")
