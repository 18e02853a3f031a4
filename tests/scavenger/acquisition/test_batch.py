"""What is said to the schedulers, and what they answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.acquisition.batch import AgentCommand, SlurmBatch, slurm_jobs
from malletrain.scavenger.acquisition.ledger import Phase
from malletrain.scavenger.acquisition.pbs_batch import PbsBatch, pbs_jobs
from malletrain.scavenger.sources.base import NodeFacts, SourceError

AGENT = AgentCommand("/env/bin/python", "head:50066", "/state/agent-token", "0.0.0.0", 1.5)


class Recorder:
    """Plays one answer, and keeps what was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []

    async def __call__(self, argv: Sequence[str], timeout_seconds: float) -> str:
        assert timeout_seconds > 0
        self.asked.append(list(argv))
        return self.answers.pop(0)


async def test_a_slurm_placeholder_is_one_node_never_requeued_and_ends_in_time() -> None:
    run = Recorder("123;cluster\n")
    batch = SlurmBatch(run, AGENT, "scavenge", options=("--account=idle",))
    assert await batch.submit("n003", 599.0) == "123"
    argv = run.asked[0]
    assert argv[0] == "sbatch"
    for option in (
        "--partition=scavenge",
        "--nodelist=n003",
        "--nodes=1",
        "--no-requeue",
        "--time=9",
        "--mem=0",
        "--account=idle",
    ):
        assert option in argv
    assert not any(word.startswith("--gres") for word in argv)
    assert argv[-1].startswith("--wrap=exec srun ")
    assert "--node n003 --head head:50066 --token /state/agent-token" in argv[-1]


async def test_a_placeholder_asks_for_all_that_its_node_has() -> None:
    slurm, pbs = Recorder("123\n"), Recorder("77.head\n")
    await SlurmBatch(slurm, AGENT, "scavenge").submit("n003", 600.0, NodeFacts(gpus=4))
    assert "--gres=gpu:4" in slurm.asked[0]
    await PbsBatch(pbs, AGENT, "idle").submit("pn004", 600.0, NodeFacts(gpus=2, cpus=8))
    assert "select=1:vnode=pn004:ncpus=8:ngpus=2" in pbs.asked[0]


async def test_an_answer_that_is_no_job_id_is_refused() -> None:
    with pytest.raises(SourceError, match="expected a job id"):
        await SlurmBatch(Recorder("sbatch: queued\n"), AGENT, "scavenge").submit("n1", 600)
    with pytest.raises(SourceError, match="expected a job id"):
        await PbsBatch(Recorder("what?\n"), AGENT, "idle").submit("n1", 600)


def test_slurms_list_is_read() -> None:
    text = "11|RUNNING|n001|n001\n12|PENDING||n002\n13|COMPLETING|n003|n003\n14|FAILED|n004|n004\n"
    assert slurm_jobs(text) == {
        "11": ("n001", Phase.RUNNING),
        "12": ("n002", Phase.PENDING),
        "13": ("n003", Phase.ENDING),
    }


async def test_pbs_is_asked_for_details_only_where_there_are_placeholders() -> None:
    run = Recorder("\n")
    assert await PbsBatch(run, AGENT, "idle").find() == {}
    assert len(run.asked) == 1
    jobs = {
        "5.head": {"job_state": "R", "exec_vnode": "(pn004:ncpus=8)"},
        "6.head": {"job_state": "Q", "Resource_List": {"select": "1:vnode=pn005"}},
        "7.head": {"job_state": "F"},
    }
    run = Recorder("5.head\n6.head\n7.head\n", json.dumps({"Jobs": jobs}))
    found = await PbsBatch(run, AGENT, "idle").find()
    assert found == {"5.head": ("pn004", Phase.RUNNING), "6.head": ("pn005", Phase.PENDING)}
    assert run.asked[1][-3:] == ["5.head", "6.head", "7.head"]


async def test_a_pbs_placeholder_asks_for_its_vnode_and_is_not_rerun() -> None:
    run = Recorder("77.head\n")
    assert await PbsBatch(run, AGENT, "idle").submit("pn004", 601.5) == "77.head"
    argv = run.asked[0]
    assert "select=1:vnode=pn004" in argv
    assert "walltime=601" in argv
    assert argv[argv.index("-r") + 1] == "n"
    assert argv[argv.index("--") + 1] == "/env/bin/python"


@given(st.text())
def test_garbage_is_an_error_of_the_source_and_no_other(text: str) -> None:
    for read in (slurm_jobs, pbs_jobs):
        try:
            read(text)
        except SourceError:
            continue
