"""The override for Slurm on a real one of this machine: harvest, a main job that wants all nodes, harvest again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from malletrain.runtime.settings_file import SERVICES
from tests.containers.composition import ROOT, Composition, Job, missing_images
from tests.slurm.cluster import Cluster, cluster, missing
from tests.support.metrics import fetch
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.training.accounts import accounts_of

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

NODES = 3
SCALE = 2
PATIENCE = 180.0
PLACEHOLDER = "malletrain"
CLIENT = "slurm-client slurm-wlm-basic-plugins munge"
IMAGES = {f"MALLETRAIN_{name.upper()}_IMAGE": f"localhost/malletrain-{name}:slurm" for name in ("head", "trainer")}
_AHEAD = 600
_TIMES = ("job_manager_node_release", "scavenger_reclaim_step")
_SETTINGS = """
[scavenger]
source = "slurm"
debounce_seconds = 0
[scavenger.slurm]
partitions = ["main"]
interval_seconds = 0.5
[scavenger.slurm.hold]
queue = "scavenge"
agents_address = "127.0.0.1:{port}"
python = "{python}"
log = "{shared}/agents/%j.log"
calm_seconds = 1
[job_manager]
backend = "torchrun"
"""


@dataclass(frozen=True)
class Site:
    """A cluster, and the services in containers on its head node.

    Attributes:
        slurm: The cluster.
        composition: The services.
        shared: What all nodes have at the same path.
        metrics: Ports on loopback at which services serve metrics.
    """

    slurm: Cluster
    composition: Composition
    shared: Path
    metrics: dict[str, int]

    def job(self) -> dict[str, Any]:
        """The one training, with its history."""
        found: dict[str, Any] = json.loads(self.composition.cli("job", "j000001", "--json"))
        return found

    def wait_for_training(self, more_than: int = 0) -> Job:
        """Wait until it trains on held nodes."""

        def trains(jobs: dict[str, Job]) -> bool:
            return jobs["j000001"].state == "RUNNING" and jobs["j000001"].samples > more_than

        found = self.composition.wait_for_jobs(trains, "a training")["j000001"]
        wait_until(lambda: len(self.held()) == SCALE, PATIENCE, "two held nodes")
        return found

    def held(self) -> list[str]:
        """Nodes that a running placeholder holds."""
        jobs = self.slurm.jobs(PLACEHOLDER)
        return [node for _, state, nodes in jobs if state == "RUNNING" for node in nodes]

    def reclaims(self) -> list[str]:
        """How long nodes took to be given back, in seconds: sums and counts of JobManager and the Scavenger."""
        pages = fetch(self.metrics["job_manager"]) + fetch(self.metrics["scavenger"])
        return re.findall(rf"^malletrain_(?:{'|'.join(_TIMES)})_seconds_(?:sum|count).*", pages, re.MULTILINE)

    def workers(self) -> list[int]:
        """Processes on the nodes that train."""
        trainer = str(self.shared / "trainer.py")
        return [entry.pid for entry in psutil.process_iter(["cmdline"]) if trainer in (entry.info["cmdline"] or ())]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if absent := missing_images("head", "trainer"):
        pytest.skip(absent)
    if absent := missing():
        pytest.skip(absent)
    if os.geteuid() != 0:
        pytest.skip("the local Slurm is root's here, and so are containers that submit to it")
    folder = tmp_path_factory.mktemp("site")
    shared = folder / "shared"
    write_shared(shared)
    with_client()
    metrics = {name: free_port() for name in SERVICES}
    with cluster(folder / "slurm", NODES) as slurm:
        composition = Composition("malletrain-test-slurm", variables(slurm, shared), options(folder, metrics))
        composition.down("--volumes")
        try:
            composition.up()
            yield Site(slurm, composition, shared, metrics)
        finally:
            composition.down("--volumes")
            subprocess.run(["docker", "image", "rm", *IMAGES.values()], capture_output=True, check=False)


def write_shared(shared: Path) -> None:
    """State folder, settings and trainer, as they are on a file system that all nodes share."""
    for name in ("state", "config", "agents"):
        (shared / name).mkdir(parents=True, mode=0o700)
    settings = _SETTINGS.format(port=free_port(), python=sys.executable, shared=shared)
    (shared / "config/malletrain.toml").write_text(settings)
    for name in ("trainer.py", "trainer_settings.py"):
        shutil.copy(ROOT / "tests/training" / name, shared)
    # JobManager looks whether a job's program is there, and its container does not have the interpreter of the nodes.
    python = shared / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)


def with_client() -> None:
    """Images with Slurm's client, as `--build-arg PACKAGES` makes them."""
    install = f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {CLIENT} >/dev/null"
    for image in IMAGES.values():
        text = f"FROM {image.replace(':slurm', ':latest')}\nUSER root\nRUN {install}\nUSER malletrain\n"
        subprocess.run(["docker", "build", "--tag", image, "-"], input=text, text=True, capture_output=True, check=True)


def variables(slurm: Cluster, shared: Path) -> dict[str, str]:
    return IMAGES | {
        "MALLETRAIN_USER": f"{os.geteuid()}:{os.getegid()}",
        "MALLETRAIN_STATE_DIR": str(shared / "state"),
        "MALLETRAIN_CONFIG": str(shared / "config"),
        "SHARED_FILE_SYSTEM": str(shared),
        "SLURM_CONF": str(slurm.folder / "slurm.conf"),
        "SLURM_CONF_FOLDER": str(slurm.folder),
        "MUNGE_FOLDER": str(slurm.folder / "munge"),
    }


def options(folder: Path, metrics: dict[str, int]) -> tuple[str, ...]:
    """The files of compose; the last one has ports of the test's own, since they are the host's."""
    ports = {f"MALLETRAIN_ADDRESSES__{name.upper()}": f"127.0.0.1:{free_port()}" for name in SERVICES}
    ports |= {f"MALLETRAIN_METRICS__{name.upper()}": f"127.0.0.1:{port}" for name, port in metrics.items()}
    services = {name: {"environment": ports} for name in (*SERVICES, "cli", "admin")}
    own = folder / "ports.yml"
    own.write_text(json.dumps({"services": services}))  # JSON is YAML
    files = (ROOT / "docker-compose.yml", ROOT / "deploy/docker/slurm.yml", own)
    return tuple(word for path in files for word in ("--file", str(path)))


def test_a_training_gives_its_nodes_to_a_main_job_and_goes_on(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    scale = ("--max", str(SCALE), "--profile", "never", "--curve", "1:100,2:190", "--workdir", str(site.shared))
    site.composition.cli("submit", *scale, "--", *(str(site.shared / name) for name in ("python", "trainer.py")))
    before = site.wait_for_training(500)
    assert len(site.workers()) >= SCALE, "and perhaps those that wait to take over"
    stamp = site.shared / "main"
    site.slurm.submit(NODES, f"echo $EPOCHREALTIME >{stamp}.part\nmv {stamp}.part {stamp}\nsleep 6")
    wait_until(stamp.exists, PATIENCE, "the main job")
    assert site.workers() == [], "the main job has its nodes for itself"
    later = site.wait_for_training(before.samples)
    assert later.samples > before.samples
    folder = site.shared / "state/jobs/j000001"
    newest = max(line["before"] for line in accounts_of(folder).batches)
    (folder / "draft").write_text(str(newest + _AHEAD))
    (folder / "draft").rename(folder / "wanted")
    site.composition.wait_for_jobs(lambda jobs: jobs["j000001"].state == "COMPLETED", "the end of the training")
    accounts = accounts_of(folder)
    accounts.check_epochs()
    accounts.check_state()
    reclaims = site.reclaims()
    with capsys.disabled():
        print(f"\n{site.composition.cli('job', 'j000001')}\nrepeated: {len(accounts.repeated)} of {accounts.samples}")
        print(*reclaims, sep="\n")
    (released,) = (line.split()[-1] for line in reclaims if "node_release_seconds_count" in line)
    assert float(released) >= SCALE
    wait_until(lambda: not site.slurm.jobs(PLACEHOLDER), PATIENCE, "the nodes to be given back")
