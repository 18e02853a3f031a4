"""Single GPUs of partly used nodes of a real OpenPBS (which only claims to have them), beside main jobs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from malletrain.cli.demo.job_processes import find_job_processes
from malletrain.cli.operate.doctor_checks import Finding
from malletrain.cli.operate.doctor_pbs import examine_pbs
from malletrain.common.environment import JOB_DIR, NODE
from malletrain.common.processes import FoundProcess, find_processes
from malletrain.scavenger.machine.gpu_units import node_of_unit
from malletrain.scavenger.sources.schedulers.settings import PbsSettings
from malletrain.v1 import resources_pb2, scavenger_pb2
from tests.pbs.cluster import PbsCluster, missing, pbs_cluster
from tests.schedulers.holding import holding
from tests.schedulers.installation import Installation, installed
from tests.support.ports import free_port
from tests.support.waiting import wait_until, wait_until_async

pytestmark = [pytest.mark.pbs, pytest.mark.timeout(600)]

PATIENCE = 180.0
GPUS = 4
PARTLY_USED, IDLE = "p001", "p002"


@pytest.fixture
def pbs(monkeypatch: pytest.MonkeyPatch) -> Iterator[PbsCluster]:
    if reason := missing():
        pytest.skip(reason)
    with pbs_cluster(2, gpus=GPUS) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running
        running.end_jobs()


def test_trainings_use_the_gpus_that_main_jobs_leave_and_give_single_ones_back(pbs: PbsCluster, tmp_path: Path) -> None:
    first = MainJob(pbs, tmp_path / "first", PARTLY_USED, gpus=1)
    wait_until(first.runs, PATIENCE, "a main job on one GPU")
    with installed(pbs, tmp_path) as running:
        for _ in range(2):
            running.submit(1, GPUS)
        wait_until(lambda: len(used(running)) == 2 * GPUS - 1, PATIENCE, "trainings on all other GPUs")
        everything = {(node, device) for node in (PARTLY_USED, IDLE) for device in range(GPUS)}
        wait_until(lambda: devices(running) == everything - first.devices(), PATIENCE, "a GPU of its own for each")
        assert in_use(pbs) == {PARTLY_USED: (GPUS, 2 * GPUS), IDLE: (GPUS, 2 * GPUS)}
        assert {threads(process) for process in workers(running)} == {"2"}, "each worker has its GPU's CPUs"
        assert all(psutil.Process(process.id.pid).nice() >= 10 for process in workers(running))

        begin = time.time()
        second, third = (MainJob(pbs, tmp_path / name, PARTLY_USED, gpus=1) for name in ("second", "third"))
        wait_until(lambda: second.runs() and third.runs(), PATIENCE, "main jobs on two more")
        print(
            f"pbs: main jobs of one GPU started {second.started() - begin:.1f} and {third.started() - begin:.1f} s "
            "after both were submitted"
        )
        of_main = first.devices() | second.devices() | third.devices()
        assert len(of_main) == 3
        assert not devices(running) & of_main, "no process of ours is where theirs are"
        wait_until(lambda: len(held(pbs)) == GPUS + 1, PATIENCE, "the other five to be held")
        assert Counter(held(pbs)) == {PARTLY_USED: 1, IDLE: GPUS}, "the node's last one is ours"
        before = samples(running)
        wait_until(lambda: samples(running) > before, PATIENCE, "trainings that go on")

        for job in (first, second, third):
            job.end()
        wait_until(lambda: len(held(pbs)) == 2 * GPUS, PATIENCE, "all GPUs to be held")
        done = running.deployment.command("drain", IDLE, timeout=90)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: {*held(pbs)} == {PARTLY_USED}, PATIENCE, "all GPUs of a drained node to be given back")
        wait_until(lambda: {node for node, _ in devices(running)} == {PARTLY_USED}, PATIENCE, "trainings on the others")
    wait_until(lambda: not held(pbs), PATIENCE, "the end of all placeholders")
    assert not find_job_processes(tmp_path)


def test_no_worker_starts_where_pbs_names_no_gpu(pbs: PbsCluster, tmp_path: Path) -> None:
    pbs.run("qmgr", "-c", "set hook gpu_numbers enabled = False")
    with installed(pbs, tmp_path) as running:
        running.submit(1, GPUS)
        wait_until(lambda: "does not say which GPU" in said_of_nodes(running), PATIENCE, "the reason")
        assert not workers(running)


def test_doctor_reads_what_the_hook_of_a_real_pbs_keeps_apart(pbs: PbsCluster, tmp_path: Path) -> None:
    section = PbsSettings.model_validate({"queues": ["main"], "units": "gpus", "hold": {"queue": "scavenge"}})

    def found() -> dict[str, Finding]:
        return {one.check: one for one in examine_pbs(section)}

    assert not found()["hook of GPUs"].ok
    assert "pbs_cgroups off, others: gpu_numbers" in found()["hook of GPUs"].found
    pbs.run("qmgr", "-c", "set hook pbs_cgroups enabled = True")
    assert found()["hook of GPUs"].ok
    apart = found()["pbs_cgroups: what is kept apart"]
    assert (apart.ok, apart.found) == (False, "devices off: no job is told its GPUs, and our workers do not start")
    file = json.loads(pbs.run("qmgr", "-c", "export hook pbs_cgroups application/x-config default"))
    file["cgroup"]["devices"] |= {"enabled": True, "allow": ["c 1:* rwm", ["nvidiactl", "rwm"]]}
    (tmp_path / "pbs_cgroups.json").write_text(json.dumps(file))
    path = tmp_path / "pbs_cgroups.json"
    pbs.run("qmgr", "-c", f"import hook pbs_cgroups application/x-config default {path}")
    assert found()["pbs_cgroups: what is kept apart"].ok


async def test_gpus_are_found_again_and_only_those_that_are_wanted_are_given_back(
    pbs: PbsCluster, tmp_path: Path
) -> None:
    units = {f"{node}.gpu{number}" for node in pbs.nodes for number in range(GPUS)}
    address = {"agents_address": f"{pbs.head}:{free_port()}"}
    async with holding(pbs, tmp_path / "state", GPUS, give_back_at_exit=False, **address) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == units, PATIENCE, "all GPUs")
        before = pbs.placeholders()
    assert pbs.placeholders() == before, "a Scavenger that ends leaves its placeholders to the next one"
    async with holding(pbs, tmp_path / "state", GPUS, **address) as scavenger:
        watch = scavenger.watch()
        await wait_until_async(lambda: set(watch.idle) == units, PATIENCE, "the same GPUs")
        assert pbs.placeholders() == before

        submitted = time.time()
        main = MainJob(pbs, tmp_path / "main", PARTLY_USED, gpus=2)
        await wait_until_async(main.runs, PATIENCE, "a main job on two held GPUs")
        print(f"pbs: a main job on two held GPUs started after {main.started() - submitted:.2f} s")
        left = pbs.placeholders()
        assert left.items() <= before.items(), "none came meanwhile"
        assert Counter(left.values()) == {PARTLY_USED: GPUS - 2, IDLE: GPUS}, "two were preempted, no more"
        assert in_use(pbs)[PARTLY_USED] == (GPUS, 2 * GPUS)
        await wait_until_async(lambda: len(set(watch.idle)) == 2 * GPUS - 2, PATIENCE, "two to be left")

        pbs.set_offline(IDLE)
        await wait_until_async(lambda: set(pbs.placeholders().values()) == {PARTLY_USED}, PATIENCE, "all of the other")
        pbs.set_online(IDLE)
        main.end()
        await wait_until_async(lambda: set(watch.idle) == units, PATIENCE, "all GPUs once more")
        await scavenger.stub.DrainNodes(scavenger_pb2.DrainNodesRequest(all=True), timeout=10)
        await wait_until_async(lambda: not pbs.placeholders(), PATIENCE, "the end of all placeholders")
        submitted = time.time()
        free = MainJob(pbs, tmp_path / "free", PARTLY_USED, gpus=2)
        await wait_until_async(free.runs, PATIENCE, "a main job on free GPUs")
        print(f"pbs: a main job on two free GPUs started after {free.started() - submitted:.2f} s")


class MainJob:
    """One that takes some GPUs of a node."""

    def __init__(self, pbs: PbsCluster, told: Path, node: str, gpus: int) -> None:
        self._pbs, self._told, self._node = pbs, told, node
        script = f"echo $CUDA_VISIBLE_DEVICES $(date +%s.%N) >{told}.part\nmv {told}.part {told}\nexec sleep 900"
        chunk = f"select=1:ncpus={2 * gpus}:ngpus={gpus}:mem=1gb:host={node}"
        how = ["-q", "main", "-j", "oe", "-o", "/dev/null", "-l", chunk, "-l", "place=shared", "-l", "walltime=1200"]
        self._id = pbs.run("qsub", *how, text=f"#!/bin/bash\n{script}\n").strip()

    def runs(self) -> bool:
        return self._told.exists()

    def started(self) -> float:
        return float(self._told.read_text().split()[1])

    def devices(self) -> set[tuple[str, int]]:
        return {(self._node, int(number)) for number in self._told.read_text().split()[0].split(",")}

    def end(self) -> None:
        self._pbs.run("qdel", self._id)


def held(pbs: PbsCluster) -> list[str]:
    """The node of each placeholder that runs."""
    return list(pbs.placeholders().values())


def in_use(pbs: PbsCluster) -> dict[str, tuple[int, int]]:
    """GPUs and CPUs of each node that are given to jobs."""
    nodes = json.loads(pbs.run("pbsnodes", "-av", "-F", "json"))["nodes"]
    given = {name: entry["resources_assigned"] for name, entry in nodes.items()}
    return {name: (amounts["ngpus"], amounts["ncpus"]) for name, amounts in given.items()}


def samples(running: Installation) -> int:
    return sum(int(job.samples) for job in running.jobs())


def used(running: Installation) -> set[str]:
    """GPUs, by our names, on which jobs train; none is used twice."""
    units = [
        unit for job in running.jobs() if job.state == resources_pb2.JOB_STATE_RUNNING for unit in job.confirmed_nodes
    ]
    assert len(units) == len(set(units))
    return set(units)


def workers(running: Installation) -> list[FoundProcess]:
    ours = find_processes(lambda environ: Path(environ.get(JOB_DIR, "/")).is_relative_to(running.folder))
    return [process for process in ours if process.environment.get(NODE)]


def threads(process: FoundProcess) -> str:
    return str(process.environment.get("OMP_NUM_THREADS"))


def devices(running: Installation) -> set[tuple[str, int]]:
    """Node and device of each worker, as its environment says."""
    return {
        (node_of_unit(process.environment[NODE]), int(process.environment.get("CUDA_VISIBLE_DEVICES", "-1")))
        for process in workers(running)
    }


def said_of_nodes(running: Installation) -> str:
    done = running.deployment.command("nodes", timeout=90)
    return done.stdout + done.stderr
