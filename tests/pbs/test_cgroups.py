"""OpenPBS's own hook of cgroups: each job, ours or of the main queue, is kept to its cores, its memory and its GPU.

The node has two devices that look like GPUs (`node_with_gpus.sh`). What stands for `nvidia-smi` says that they are
at the first two places of this machine's PCI bus, whatever is there: the hook looks for the place, and at nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from malletrain.cli.operate.doctor_pbs import examine_pbs
from malletrain.common.environment import JOB_DIR, NODE
from malletrain.common.processes import find_processes
from malletrain.scavenger.sources.schedulers.settings import PbsSettings
from tests.pbs.cluster import PbsCluster, missing, pbs_cluster
from tests.schedulers.installation import Installation, installed
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]

PATIENCE = 180.0
GPUS = 2
NAMES = ("GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b")
CGROUPS = Path("/sys/fs/cgroup")
PCI = Path("/sys/bus/pci/devices")
PARTS = ("cpuset", "memory", "devices")
OURS = "pbs_jobs.service/jobid"
"""Where the hook has a folder for each job, by `cgroup_prefix`."""
ALLOW = ["b *:* rwm", "c *:* m", *(f"c {major}:* rwm" for major in (1, 5, 10, 136)), ["nvidiactl", "rwm"]]
"""As docs/operators/pbs.md has it, without the devices that this machine lacks."""
MAIN = """
for number in 0 1; do : <>/dev/nvidia$number; done 2>{said}
echo $CUDA_VISIBLE_DEVICES >{told}.part
mv {told}.part {told}
exec sleep 900
"""


def missing_cgroups() -> str:
    """Why the hook can't work here; empty where it can. That of OpenPBS knows version 1 only."""
    absent = [part for part in (*PARTS, "cpuacct") if not (CGROUPS / part / "cgroup.procs").exists()]
    if absent:
        return f"pbs_cgroups needs the kernel's cgroups of version 1: no {', '.join(absent)}"
    return "" if len(places()) == GPUS else "pbs_cgroups needs a PCI bus"


def places() -> list[str]:
    """Where the GPUs are said to be, e.g. `0000:00:01.0`."""
    return sorted(path.name for path in PCI.glob("*"))[:GPUS]


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsCluster]:
    if reason := missing() or missing_cgroups():
        pytest.skip(reason)
    try:
        with pbs_cluster(1, gpus=GPUS, prepare=Path(__file__).with_name("node_with_gpus.sh")) as running:
            for name, value in running.environment.items():
                monkeypatch.setenv(name, value)
            running.run("qmgr", "-c", "set hook gpu_numbers enabled = False")
            yield running
            running.end_jobs()
    finally:
        remove_cgroups()


def test_jobs_are_confined_and_told_their_gpu(pbs: PbsCluster, tmp_path: Path) -> None:
    enable(pbs, tmp_path, ALLOW)
    assert judged() == "GPUs, cores and memory"
    first = main_job(pbs, tmp_path / "first")
    wait_until((tmp_path / "first").exists, PATIENCE, "a main job on one GPU")
    with installed(pbs, tmp_path) as running:
        job = running.submit(1, GPUS)
        wait_until(lambda: len(running.nodes(job)) == 1, PATIENCE, "a training on the other GPU")
        wait_until(lambda: running.samples(job) > 0, PATIENCE, "samples")
        (placeholder,) = pbs.placeholders()
        theirs = (tmp_path / "first").read_text().strip()
        assert {theirs, *(value for _, value in workers(running))} == set(NAMES), "each on a GPU of its own"
        for pid, _ in workers(running):
            assert {cgroup(pid, part) for part in PARTS} == {f"/{OURS}/{placeholder}"}
            cores = psutil.Process(pid).cpu_affinity()
            assert len(cores) == 1, "the share of a GPU is one of two cores"
            assert cores != cores_of(first), "and not that of the main job"
        share = int((CGROUPS / "memory" / OURS / placeholder / "memory.limit_in_bytes").read_text())
        assert share < psutil.virtual_memory().total / GPUS
        assert opened(placeholder) == {NAMES.index(({*NAMES} - {theirs}).pop())}
        assert opened(first) == {NAMES.index(theirs)}
        errors = (tmp_path / "first.errors").read_text().splitlines()
        assert len(errors) == GPUS
        own, other = errors if theirs == NAMES[0] else reversed(errors)
        assert "No such device or address" in own, "it may, but there is no driver"
        assert "Operation not permitted" in other

        second = main_job(pbs, tmp_path / "second")
        wait_until((tmp_path / "second").exists, PATIENCE, "a main job on our GPU")
        assert {(tmp_path / name).read_text().strip() for name in ("first", "second")} == set(NAMES)
        assert not workers(running), "no process of ours is beside it"
        pbs.end_job(second)
        before = running.samples(job)
        wait_until(lambda: running.samples(job) > before, PATIENCE, "the training to go on after it")
    wait_until(lambda: not pbs.placeholders(), PATIENCE, "the end of all placeholders")
    wait_until(lambda: set(jobs_with_cgroups()) == {first}, PATIENCE, "no cgroup of ours to be left")


def test_doctor_says_what_the_list_that_the_hook_comes_with_allows(pbs: PbsCluster, tmp_path: Path) -> None:
    enable(pbs, tmp_path, None)
    assert judged() == "every job may open every GPU: `allow` of devices has 'c *:* rwm'"
    main_job(pbs, tmp_path / "main")
    wait_until((tmp_path / "main").exists, PATIENCE, "a main job on one GPU")
    assert (tmp_path / "main.errors").read_text().count("No such device or address") == GPUS, "so it may, both"


def enable(pbs: PbsCluster, folder: Path, allow: list[Any] | None) -> None:
    """Have the node's mom start with the hook, as docs/operators/pbs.md says.

    Args:
        pbs: The cluster.
        folder: For files.
        allow: The list of devices; None: the one that the hook comes with.
    """
    file = json.loads(pbs.run("qmgr", "-c", "export hook pbs_cgroups application/x-config default"))
    file["cgroup"]["devices"]["enabled"] = True
    if allow is not None:
        file["cgroup"]["devices"]["allow"] = allow
    gpus = "".join(
        f'<gpu id="0000{place}"><minor_number>{number}</minor_number><uuid>{NAMES[number]}</uuid></gpu>'
        for number, place in enumerate(places())
    )
    command = pbs.folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\necho '<nvidia_smi_log>{gpus}</nvidia_smi_log>'\n")
    command.chmod(0o755)
    file["nvidia-smi"] = str(command)
    (folder / "pbs_cgroups.json").write_text(json.dumps(file))
    pbs.run("qmgr", "-c", f"import hook pbs_cgroups application/x-config default {folder / 'pbs_cgroups.json'}")
    pbs.run("qmgr", "-c", "set hook pbs_cgroups enabled = True")
    private = pbs.folder / "nodes" / pbs.nodes[0] / "mom_priv"
    sent = [private / "hooks" / f"pbs_cgroups.{kind}" for kind in ("HK", "CF")]
    wait_until(lambda: "enabled=false" not in (read(sent[0]) or "enabled=false"), PATIENCE, "the hook to be sent")
    wait_until(lambda: str(command) in read(sent[1]), PATIENCE, "its file to be sent")
    pid = int((private / "mom.lock").read_text())
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), PATIENCE, "the end of the mom")
    pbs.start_again()
    wait_until(lambda: "resources_available.hpmem" in pbs.run("pbsnodes", "-av"), PATIENCE, "what the hook counts")


def judged() -> str:
    section = PbsSettings.model_validate({"queues": ["main"], "units": "gpus", "hold": {"queue": "scavenge"}})
    return next(one.found for one in examine_pbs(section) if one.check == "pbs_cgroups: what is kept apart")


def main_job(pbs: PbsCluster, told: Path) -> str:
    """One on one GPU, which notes in a file what it is told, and in another one whether it may open the GPUs."""
    chunk = ["-l", "select=1:ncpus=1:ngpus=1:mem=1gb", "-l", "place=shared", "-l", "walltime=1200"]
    script = MAIN.format(told=told, said=f"{told}.errors")
    how = ["-q", "main", "-j", "oe", "-o", "/dev/null"]
    return pbs.run("qsub", *how, *chunk, text=f"#!/bin/bash\n{script}\n").strip()


def workers(running: Installation) -> list[tuple[int, str]]:
    """Process and GPU of each worker."""
    ours = find_processes(lambda environ: Path(environ.get(JOB_DIR, "/")).is_relative_to(running.folder))
    found = [process for process in ours if process.environment.get(NODE)]
    return [(process.id.pid, str(process.environment.get("CUDA_VISIBLE_DEVICES"))) for process in found]


def cgroup(pid: int, part: str) -> str:
    lines = (line.split(":", 2) for line in read(Path(f"/proc/{pid}/cgroup")).splitlines())
    return next(path for _, names, path in lines if part in names.split(","))


def cores_of(identifier: str) -> list[int]:
    """Cores of a job, of which there is one."""
    return [int((CGROUPS / "cpuset" / OURS / identifier / "cpuset.cpus").read_text())]


def opened(identifier: str) -> set[int]:
    """Numbers of the GPUs that a job may open."""
    rules = (CGROUPS / "devices" / OURS / identifier / "devices.list").read_text().splitlines()
    return {number for number in range(GPUS) if any(rule.startswith(f"c 195:{number} rw") for rule in rules)}


def jobs_with_cgroups() -> list[str]:
    return [path.name for part in PARTS for path in (CGROUPS / part / OURS).iterdir() if path.is_dir()]


def remove_cgroups() -> None:
    """What the hook leaves when PBS ends."""
    for part in (*PARTS, "cpuacct"):
        top = CGROUPS / part / OURS.partition("/")[0]
        for path in (*top.glob("*/*/"), *top.glob("*/"), top):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path.rmdir()


def read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
