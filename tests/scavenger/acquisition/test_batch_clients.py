"""What is said to the schedulers, and what they answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.acquisition.batch_client import AgentCommand
from malletrain.scavenger.acquisition.pbs_batch_client import PbsBatchClient, parse_pbs_ends, parse_pbs_jobs
from malletrain.scavenger.acquisition.placeholders import EndedPlaceholder, ListedPlaceholder, PlaceholderPhase
from malletrain.scavenger.acquisition.slurm_batch_client import SlurmBatchClient, parse_slurm_ends, parse_slurm_jobs
from malletrain.scavenger.sources.base import NodeFacts, SourceError

AGENT = AgentCommand("/env/bin/python", "head:50066", "/state/keys/certificates/agent.pem", "0.0.0.0", 1.5)


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
    batch = SlurmBatchClient(run, AGENT, "scavenge", options=("--account=idle",))
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
    assert "--node n003 --head head:50066 --certificate /state/keys/certificates/agent.pem" in argv[-1]


async def test_a_placeholder_asks_for_all_that_its_node_has() -> None:
    slurm, pbs = Recorder("123\n"), Recorder("77.head\n")
    await SlurmBatchClient(slurm, AGENT, "scavenge").submit("n003", 600.0, NodeFacts(gpus=4))
    assert "--gres=gpu:4" in slurm.asked[0]
    await PbsBatchClient(pbs, AGENT, "idle").submit("pn004", 600.0, NodeFacts(gpus=2, cpus=8))
    assert "select=1:vnode=pn004:ncpus=8:ngpus=2" in pbs.asked[0]


async def test_an_answer_that_is_no_job_id_is_refused() -> None:
    with pytest.raises(SourceError, match="expected a job id"):
        await SlurmBatchClient(Recorder("sbatch: queued\n"), AGENT, "scavenge").submit("n1", 600)
    with pytest.raises(SourceError, match="expected a job id"):
        await PbsBatchClient(Recorder("what?\n"), AGENT, "idle").submit("n1", 600)


def test_slurms_list_is_read() -> None:
    text = (
        "11|RUNNING|n001|n001|None\n12|PENDING||n002|Priority\n13|COMPLETING|n003|n003|None\n"
        "14|FAILED|n004|n004|None\n15|PENDING||n005|PartitionDown\n16|PENDING||n006|ReqNodeNotAvail, Unavailable:n6\n"
        "17|PENDING||n007|QOSMaxJobsPerUserLimit\n"
    )
    assert parse_slurm_jobs(text) == {
        "11": ListedPlaceholder("n001", PlaceholderPhase.RUNNING),
        "12": ListedPlaceholder("n002", PlaceholderPhase.PENDING),
        "13": ListedPlaceholder("n003", PlaceholderPhase.ENDING),
        "15": ListedPlaceholder("n005", PlaceholderPhase.PENDING, "Slurm says PartitionDown"),
        "16": ListedPlaceholder("n006", PlaceholderPhase.PENDING),
        "17": ListedPlaceholder("n007", PlaceholderPhase.PENDING, "Slurm says QOSMaxJobsPerUserLimit"),
    }


async def test_slurm_tells_how_placeholders_ended_that_are_no_longer_listed() -> None:
    run = Recorder("11|FAILED|NonZeroExitCode\n12|PREEMPTED|None\n13|RUNNING|None\n15|SUSPENDED|None\n")
    found = await SlurmBatchClient(run, AGENT, "scavenge", log="/var/log/p.log").explain(["11", "12", "13", "14", "15"])
    assert found == {
        "11": EndedPlaceholder("FAILED (NonZeroExitCode); its output is in /var/log/p.log"),
        "12": EndedPlaceholder("PREEMPTED (None)", failed=False),
        "14": EndedPlaceholder("the scheduler no longer knows it; its output is in /var/log/p.log"),
    }
    assert "--jobs=11,12,13,14,15" in run.asked[0]


async def test_a_single_job_that_slurm_has_forgotten_is_no_failure_of_slurm() -> None:
    async def run(*_: object) -> str:
        raise SourceError("squeue ended with status 1: slurm_load_jobs error: Invalid job id specified")

    assert list(await SlurmBatchClient(run, AGENT, "scavenge").explain(["11"])) == ["11"]

    async def silent(*_: object) -> str:
        raise SourceError("squeue has not answered within 10 s")

    with pytest.raises(SourceError, match="not answered"):
        await SlurmBatchClient(silent, AGENT, "scavenge").explain(["11"])


async def test_pbs_is_asked_for_details_only_where_there_are_placeholders() -> None:
    run = Recorder("\n")
    assert await PbsBatchClient(run, AGENT, "idle").find() == {}
    assert len(run.asked) == 1
    jobs = {
        "5.head": {"job_state": "R", "exec_vnode": "(pn004:ncpus=8)"},
        "6.head": {
            "job_state": "Q",
            "Resource_List": {"select": "1:vnode=pn005"},
            "comment": "Not Running: Insufficient amount of resource: ncpus",
        },
        "7.head": {"job_state": "F"},
        "8.head": {
            "job_state": "Q",
            "Resource_List": {"select": "1:vnode=pn006"},
            "comment": "Not Running: Queue not started.",
        },
    }
    run = Recorder("5.head\n6.head\n7.head\n8.head\n", json.dumps({"Jobs": jobs}))
    found = await PbsBatchClient(run, AGENT, "idle").find()
    assert found == {
        "5.head": ListedPlaceholder("pn004", PlaceholderPhase.RUNNING),
        "6.head": ListedPlaceholder("pn005", PlaceholderPhase.PENDING),
        "8.head": ListedPlaceholder("pn006", PlaceholderPhase.PENDING, "PBS says 'Not Running: Queue not started.'"),
    }
    assert run.asked[1][-4:] == ["5.head", "6.head", "7.head", "8.head"]


async def test_pbs_tells_how_placeholders_ended() -> None:
    jobs = {
        "5.head": {"job_state": "F", "Exit_status": 127, "comment": "Job run at Sat"},
        "6.head": {"job_state": "F", "Exit_status": 271},
        "7.head": {"job_state": "R"},
    }
    run = Recorder(json.dumps({"Jobs": jobs}))
    found = await PbsBatchClient(run, AGENT, "idle").explain(["5.head", "6.head", "7.head", "8.head"])
    assert {key: end.failed for key, end in found.items()} == {"5.head": True, "6.head": False, "8.head": True}
    assert "exit status 127" in found["5.head"].reason


async def test_a_pbs_placeholder_asks_for_its_vnode_and_is_not_rerun() -> None:
    run = Recorder("77.head\n")
    assert await PbsBatchClient(run, AGENT, "idle").submit("pn004", 601.5) == "77.head"
    argv = run.asked[0]
    assert "select=1:vnode=pn004" in argv
    assert "walltime=601" in argv
    assert argv[argv.index("-r") + 1] == "n"
    assert argv[argv.index("--") + 1] == "/env/bin/python"


_VALUE = st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=2) | st.just({"select": 1})
_JOB = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(["job_state", "exec_vnode", "Resource_List", "comment", "Exit_status"], _VALUE),
)


@given(st.text())
def test_garbage_is_an_error_of_the_source_and_no_other(text: str) -> None:
    for read in (parse_slurm_jobs, parse_slurm_ends, parse_pbs_jobs, parse_pbs_ends):
        try:
            read(text)
        except SourceError:
            continue


@given(_VALUE | st.dictionaries(st.sampled_from(["1.head", "2.head"]), _VALUE | _JOB))
def test_json_of_another_form_is_an_error_of_the_source_and_no_other(jobs: object) -> None:
    for read in (parse_pbs_jobs, parse_pbs_ends):
        try:
            read(json.dumps({"Jobs": jobs}))
        except SourceError:
            continue
