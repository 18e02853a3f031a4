"""Jobs that need certain nodes, on a live system: they get these, or wait, and everybody is told why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

pytestmark = [pytest.mark.system, pytest.mark.long]

SETTINGS = """
[scavenger]
source = "static"
nodes = ["c1", "c2", "g1", "g2"]
debounce_seconds = 0

[scavenger.node_traits."c[1-2]"]
features = ["ib"]

[scavenger.gpu_memory_mib]
a100 = 40960

[scavenger.node_traits.g1]
gpu_type = "a100"
gpus = 1
features = ["ib", "big"]
cores = 64
memory_mib = 515000

[scavenger.node_traits.g2]
gpu_type = "a100"
gpus = 1
cores = 32
memory_mib = 191000
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("up"), SETTINGS) as deployment:
        wait_until(lambda: len(deployment.json("nodes")) == 4, 20, "four idle nodes")
        yield deployment


def submit(system: Deployment, *options: str) -> tuple[str, str]:
    """Identifier of a new job, and what the command said besides."""
    job = ("--backend", "command", "--curve", "1:100,2:150", "--", "sleep", "600")
    done = system.command("submit", *options, *job)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_jobs_get_the_nodes_that_they_need_and_others_wait(system: Deployment) -> None:
    gpu, said = submit(system, "--gpu", "a100", "--constraint", "ib&big", "--max", "2")
    assert "can't start" not in said
    cpu, _ = submit(system, "--constraint", "ib", "--exclude", "c1,g1", "--max", "1")
    waits, said = submit(system, "--gpu", "a100", "--constraint", "ib", "--exclude", "g[1-2]", "--max", "1")
    assert f"{waits} can't start as the site is: it needs 1 node at least" in said
    assert (
        "of the 4 known nodes, idle or not, 0 suit it (GPU a100: 2, feature ib: 3, none of 2 excluded nodes: 2)" in said
    )
    wait_until(lambda: list(system.job(gpu).commanded_nodes) == ["g1"], 60, "the node with both")
    wait_until(lambda: list(system.job(cpu).commanded_nodes) == ["c2"], 60, "the node that is left")
    wait_until(lambda: waits in system.command("explain").stdout, 60, "a plan with the job that waits")
    explained = system.command("explain", waits)
    assert "waits on 0 nodes" in explained.stdout
    assert "0 of the pool's" in explained.stdout
    assert "it takes such nodes only: GPU a100 (2 nodes idle), feature ib (3 nodes idle)" in explained.stdout
    assert "can't start as the site is" in explained.stderr
    more = system.command("explain", gpu)
    assert "not 2: 1 of the pool's 2 nodes suit it; what binds is feature big" in more.stdout
    shown = system.command("job", waits)
    assert "GPU a100, feature ib, none of 2 excluded nodes" in shown.stdout
    assert not system.job(waits).commanded_nodes
    third, _ = submit(system, "--gpu", "gpu", "--max", "2")
    wait_until(lambda: list(system.job(third).commanded_nodes) == ["g2"], 60, "the other GPU")
    assert list(system.job(gpu).commanded_nodes) == ["g1"]


def test_amounts_are_needs_as_well(system: Deployment) -> None:
    big, said = submit(system, "--gpu-memory", "40G", "--gpus", "1", "--cores", "33", "--memory", "256G", "--max", "2")
    assert "can't start" not in said
    waits, said = submit(system, "--gpu-memory", "40.5G", "--gpus", "4", "--cores", "16", "--max", "1")
    assert "0 suit it (GPUs of at least 41472 MiB: 0, at least 4 GPUs: 0, at least 16 cores: 2, not known of 2)" in said
    wait_until(lambda: waits in system.command("explain").stdout, 60, "a plan with the job that waits")
    explained = system.command("explain", waits)
    assert "at least 4 GPUs (0 nodes idle), at least 16 cores (2 nodes idle)" in explained.stdout
    assert "at least 256 GiB of memory" in system.command("job", big).stdout


def test_nodes_are_listed_with_what_they_are(system: Deployment) -> None:
    listed = system.command("nodes").stdout
    assert "features" in listed
    assert "ib,big" in listed
    told = {node["name"]: node for node in system.json("nodes")}
    assert [told["g1"][field] for field in ("cores", "memoryMib", "gpuMemoryMib")] == [64, 515_000, 40_960]
    assert told["c1"]["memoryMib"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--constraint", "a&b|c"), "--constraint: expected features joined either by &"),
        (("--gpu", "a 100"), "--gpu: expected at most 128 printable characters"),
        (("--exclude", "n[1"), "--exclude: expected nodes such as"),
        (("--memory", "-1"), "--memory: expected a size such as 40G, 512M or 1.5T"),
        (("--gpu-memory", "40X"), "--gpu-memory: expected a size such as 40G"),
        (("--cores", "0"), "--cores: expected a whole number from 1 to 1048576, got 0"),
        (("--gpus", "99999999999999999999"), "--gpus: expected a whole number from 1 to 1024"),
    ],
)
def test_what_can_not_be_meant_is_refused(system: Deployment, options: tuple[str, ...], message: str) -> None:
    done = system.command("submit", *options, "--", "sleep", "1")
    assert done.returncode == 2
    assert message in done.stderr
