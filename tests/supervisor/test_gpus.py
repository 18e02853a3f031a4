"""Members of fleets: real supervisors and agents whose hosts are GPUs of one node."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from malletrain.agent.environment import worker_environment
from malletrain.common import environment as env
from malletrain.common.launch_file import AgentAddress
from malletrain.common.processes import find_processes
from malletrain.supervisor.rendezvous.server import host_name, world_name
from malletrain.supervisor.workers.agent_links import AgentLink, start_message
from malletrain.supervisor.workers.slot import Slot
from tests.agent.running import agents
from tests.supervisor.running import supervised
from tests.support.certificates import certificate
from tests.support.waiting import wait_until

ASKS = (
    'echo "$MALLETRAIN_HOSTS $MALLETRAIN_GPUS $CUDA_VISIBLE_DEVICES" > said; cat $MALLETRAIN_HOSTFILE >> said; sleep 60'
)


@pytest.mark.parametrize(("own", "visible"), [({}, "0,1"), ({"CUDA_VISIBLE_DEVICES": "7"}, "7")])
@pytest.mark.processes
def test_a_program_finds_its_gpus_as_slots_of_their_nodes(tmp_path: Path, own: dict[str, str], visible: str) -> None:
    command = ["/bin/sh", "-c", ASKS]
    hosts = ("n1#1", "n1#0", "n2#0")
    with supervised(tmp_path, *hosts, command=command, backend="command", environment=own) as job:
        said = tmp_path / "said"
        wait_until(lambda: said.exists() and said.read_text().count("\n") == 3, 30, "what the program says")
        assert said.read_text() == f"n1:2,n2:1 n1#1,n1#0,n2#0 {visible}\nn1 slots=2\nn2 slots=1\n"
        job.release("n2#0", grace=1)
        wait_until(lambda: said.read_text().startswith(f"n1:2 n1#1,n1#0 {visible}\n"), 30, "the next start")


def test_horovod_asks_for_a_gpu_by_a_name_that_fits_into_an_address() -> None:
    assert world_name("n-1.a#10") == "n-1.a~10"
    assert [host_name(world_name(host)) for host in ("n1#0", "n1")] == ["n1#0", "n1"]


def test_a_worker_of_an_agent_sees_its_gpu_and_uses_its_share_of_the_processors() -> None:
    job = {env.NODE: "n1#1", env.SLOTS_PER_NODE: "1", env.NODE_GPUS: "4"}
    found = worker_environment({"CUDA_VISIBLE_DEVICES": "4,6", "NCPUS": "8"}, job, "/bin", 8)
    assert (found["CUDA_VISIBLE_DEVICES"], found["OMP_NUM_THREADS"]) == ("6", "2")
    assert worker_environment({}, job, "/bin", 8)["CUDA_VISIBLE_DEVICES"] == "1"
    chosen = {**job, "CUDA_VISIBLE_DEVICES": "0,1"}
    assert worker_environment({"CUDA_VISIBLE_DEVICES": "4,6"}, chosen, "/bin", 8)["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment({}, {env.NODE: "n1"}, "/bin", 8)


STRAYS = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(600)\n"


@pytest.mark.processes
def test_an_agent_ends_what_is_on_one_gpu_of_a_job_and_nothing_on_another(tmp_path: Path) -> None:
    own = {env.JOB_ID: f"job of {tmp_path.name}", env.JOB_DIR: str(tmp_path)}

    def on(gpu: str) -> set[int]:
        mine = find_processes(lambda found: found.get(env.JOB_DIR) == str(tmp_path) and found.get(env.NODE) == gpu)
        return {found.id.pid for found in mine}

    with agents(tmp_path, "n1") as running:
        shown = certificate(tmp_path, "supervisor")
        links = {gpu: AgentLink(gpu, AgentAddress(running["n1"].address), shown) for gpu in ("n1#0", "n1#1", "n1#2")}
        for gpu, link in links.items():
            slot, command = Slot(gpu, 0), [sys.executable, "-c", STRAYS]
            worker = link.start(slot, start_message(slot, command, str(tmp_path), own, tmp_path / gpu, warm=False))
            worker.go({})
        wait_until(lambda: all(len(on(gpu)) == 2 for gpu in links), 30, "a worker and a stray on each GPU")
        before = on("n1#2")
        assert links["n1#0"].sweep(own[env.JOB_ID])
        assert not on("n1#0")
        assert len(on("n1#1")) == 2
        links["n1#1"].close()  # as when its supervisor has ended: what it has started ends, too
        wait_until(lambda: not on("n1#1"), 10, "the end of the session's workers and strays")
        assert on("n1#2") == before
        running["n1"].process.terminate()
        running["n1"].process.wait(10)
        assert not on("n1#2")


@pytest.mark.horovod
@pytest.mark.timeout(240)
def test_a_release_of_one_gpu_leaves_the_other_of_the_same_node_training(tmp_path: Path) -> None:
    pytest.importorskip("horovod.torch", reason="needs Horovod: run deploy/install-horovod.sh")
    with agents(tmp_path, "n1") as running:
        addresses = dict.fromkeys(("n1#0", "n1#1"), running["n1"].address)
        shown = certificate(tmp_path, "supervisor")
        with supervised(tmp_path / "job", *addresses, agents=addresses, certificate_file=shown) as job:
            job.wait_batch(2)
            before = job.pids()
            assert before.keys() == {"n1#0", "n1#1"}
            state = job.release("n1#0", grace=5.0)
            assert not job.processes("n1#0")
            assert [host.name for host in state.commanded_hosts] == ["n1#1"]
            job.wait_batch(1)
            assert job.pids() == {"n1#1": before["n1#1"]}
        assert running["n1"].process.poll() is None
