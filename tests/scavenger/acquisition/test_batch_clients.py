"""What is said to the schedulers, and what they answer."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.scavenger.acquisition.batch_client import AgentCommand
from malletrain.scavenger.acquisition.pbs_answers import PbsMark, parse_pbs_ends, parse_pbs_jobs
from malletrain.scavenger.acquisition.pbs_batch_client import PbsBatchClient
from malletrain.scavenger.acquisition.slurm_batch_client import SlurmBatchClient, parse_slurm_ends, parse_slurm_jobs
from malletrain.scavenger.machine.observations import NodeFacts
from malletrain.scavenger.machine.placeholders import EndedPlaceholder, ListedPlaceholder, PlaceholderPhase
from malletrain.scavenger.sources.base import SourceError
from malletrain.scavenger.sources.schedulers.commands import NO_INPUT, CommandFailedError, Input
from tests.support.shared import shared_path

SECRET = "-----BEGIN PRIVATE KEY-----"
LINE = base64.b64encode(f"{SECRET} n003".encode()).decode()
AGENT = AgentCommand("/env/bin/python", "head:50066", lambda node: f"{SECRET} {node}", "0.0.0.0", 1.5, "0123abcd")
MARK = PbsMark("malletrain", "idle", "malletrain", "0123abcd")


class Recorder:
    """Plays one answer after another, and keeps what was asked."""

    def __init__(self, *answers: str | SourceError) -> None:
        self.answers = list(answers)
        self.asked: list[list[str]] = []
        self.given: list[str] = []

    async def __call__(self, argv: Sequence[str], timeout_seconds: float, command_input: Input = NO_INPUT) -> str:
        assert timeout_seconds > 0
        self.asked.append(list(argv))
        self.given.append(command_input.text)
        answer = self.answers.pop(0)
        if isinstance(answer, SourceError):
            raise answer
        return answer


def pbs_answer(**jobs: dict[str, object]) -> str:
    """What qstat says of jobs, `j5` for 5.head, which are ours unless they say otherwise."""
    ours = {"Job_Owner": "malletrain@head", "queue": "idle", "Job_Name": "malletrain", "argument_list": ARGUMENTS}
    lines = []
    for name, job in jobs.items():
        lines.append(f"Job Id: {name[1:]}.head")
        for key, value in {**ours, **job}.items():
            if isinstance(value, dict):
                lines += [f"    {key}.{resource} = {amount}" for resource, amount in value.items()]
            elif value is not None:
                lines.append(f"    {key} = {value}")
        lines.append("")
    return "".join(f"{line}\n" for line in lines)


ARGUMENTS = "".join(
    f"<jsdl-hpcpa:Argument>{word}</jsdl-hpcpa:Argument>" for word in ("-m", "agent", "--installation", "0123abcd")
)


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
    (script,) = run.given
    assert script.startswith(f"#!/bin/sh\nprintf '%s\\n' {LINE} | srun ")
    assert script.endswith(' && scancel "$SLURM_JOB_ID" && exec sleep 5\n')
    assert "--node n003 --head head:50066 --certificate-from stdin" in script


async def test_agents_are_told_of_standby_processes_only_where_they_shall_keep_some() -> None:
    run = Recorder("123\n", "124\n")
    await SlurmBatchClient(run, AGENT, "scavenge").submit("n003", 600.0)
    await SlurmBatchClient(run, replace(AGENT, standby_memory_mib=512), "scavenge").submit("n003", 600.0)
    assert ["--standby-mib 512" in script for script in run.given] == [False, True]


async def test_agents_are_told_to_stage_out_only_where_the_operator_allows_it() -> None:
    run = Recorder("123\n", "124\n", "125\n")
    for terms in ((0.0, 4096), (30.0, 0), (30.0, 4096)):
        await SlurmBatchClient(run, replace(AGENT, stage_out=terms), "scavenge").submit("n003", 600.0)
    options = "--stage-out-seconds 30 --stage-out-mib 4096"
    assert [options in script for script in run.given] == [False, False, True]
    assert ["--stage-out" in script for script in run.given] == [False, False, True]


async def test_a_placeholder_asks_for_all_that_its_node_has() -> None:
    slurm, pbs = Recorder("123\n"), Recorder("77.head\n")
    await SlurmBatchClient(slurm, AGENT, "scavenge").submit("n003", 600.0, NodeFacts(gpus=4))
    assert "--gres=gpu:4" in slurm.asked[0]
    await PbsBatchClient(pbs, AGENT, "idle").submit("pn004", 600.0, NodeFacts(gpus=2, cpus=8))
    assert "select=1:host=pn004:ncpus=8:ngpus=2" in pbs.asked[0]


async def test_a_placeholder_of_one_gpu_asks_for_its_share_of_the_node() -> None:
    run = Recorder("123\n", "11|RUNNING|n003|n003|malletrain:0123abcd:n003.gpu2|None\n")
    batch = SlurmBatchClient(run, AGENT, "scavenge", by_gpu=True, nice=10)
    await batch.submit("n003.gpu2", 600.0, NodeFacts(gpus=1, cpus=8, memory_mib=4000))
    argv, (script, *_) = run.asked[0], run.given
    for option in ("--nodelist=n003", "--ntasks=1", "--cpus-per-task=8", "--mem=4000M", "--gres=gpu:1"):
        assert option in argv
    assert argv[-1] == f"--comment=malletrain:{AGENT.installation}:n003.gpu2"
    assert "--exclusive" not in argv
    assert " srun --ntasks=1 --export=ALL --cpus-per-task=8 nice -n 10 " in script
    assert "--node n003.gpu2 " in script


async def test_a_placeholder_of_one_gpu_of_pbs_asks_for_its_share_of_the_host() -> None:
    run = Recorder("77.head\n", "78.head\n")
    batch = PbsBatchClient(run, AGENT, "idle", by_gpu=True, nice=10)
    await batch.submit("pn004.gpu2", 600.0, NodeFacts(gpus=1, cpus=8, memory_mib=4000))
    await batch.submit("pn004.gpu2", 600.0, NodeFacts(gpus=1, cpus=8))
    (argv, untold), _ = run.asked, run.given
    assert "select=1:host=pn004:ncpus=8:ngpus=1:mem=4000mb" in argv
    assert "select=1:host=pn004:ncpus=8:ngpus=1" in untold, "memory that is not told is not asked for"
    assert "place=shared" in argv
    arguments = next(word for word in argv if word.startswith("argument_list=")).replace("</jsdl-hpcpa:Argument>", " ")
    words = arguments.replace("<jsdl-hpcpa:Argument>", "").split()
    assert words[words.index("--node") + 1] == "pn004.gpu2"
    assert words[-3:] == ["--one-gpu", "--nice", "10"]


def test_the_gpu_of_a_placeholder_of_pbs_is_what_its_agent_is_told() -> None:
    def job(number: int, host: str, told: str, more: str = "") -> str:
        words = ["-m", "malletrain.agent", "--node", told, "--installation", "0123abcd", *more.split()]
        arguments = "".join(f"<jsdl-hpcpa:Argument>{word}</jsdl-hpcpa:Argument>" for word in words)
        return (
            f"Job Id: {number}.head\n    Job_Name = malletrain\n    Job_Owner = malletrain@head\n    job_state = R\n"
            f"    queue = idle\n    Resource_List.select = 1:host={host}:ncpus=2:ngpus=1\n"
            f"    argument_list = {arguments}\n\n"
        )

    text = "".join(
        [
            job(1, "pn1", "pn1.gpu0"),
            job(2, "pn1", "pn1.gpu3", "--one-gpu --nice 10"),
            job(3, "pn2", "pn1.gpu1"),  # not of its host
            job(4, "pn3", "pn3"),
        ]
    )
    found = {identifier: placeholder.node for identifier, placeholder in parse_pbs_jobs(text, MARK).items()}
    assert found == {"1.head": "pn1.gpu0", "2.head": "pn1.gpu3", "3.head": "pn2", "4.head": "pn3"}


def test_the_gpu_of_a_placeholder_is_in_its_comment() -> None:
    text = (
        "11|RUNNING|n1|n1|m:1:n1.gpu0|None\n12|PENDING||n1|m:1:n1.gpu3|None\n13|RUNNING|n2|n2|m:1:n1.gpu1|None\n"
        "14|RUNNING|n1|n1|m:12:n1.gpu0|None\n15|RUNNING|n1|n1|m:1:|None\n"
    )
    found = parse_slurm_jobs(text, "m:1")
    assert {identifier: job.node for identifier, job in found.items()} == {
        "11": "n1.gpu0",
        "12": "n1.gpu3",
        "13": "n2",  # its comment is not of its node
        "15": "n1",
    }


async def test_an_answer_that_is_no_job_id_is_refused() -> None:
    with pytest.raises(SourceError, match="expected a job id"):
        await SlurmBatchClient(Recorder("sbatch: queued\n"), AGENT, "scavenge").submit("n1", 600)
    with pytest.raises(SourceError, match="expected a job id"):
        await PbsBatchClient(Recorder("what?\n"), AGENT, "idle").submit("n1", 600)


def test_slurms_list_is_read() -> None:
    text = (
        "11|RUNNING|n001|n001|m:1|None\n12|PENDING||n002|m:1|Priority\n13|COMPLETING|n003|n003|m:1|None\n"
        "14|FAILED|n004|n004|m:1|None\n15|PENDING||n005|m:1|PartitionDown\n"
        "16|PENDING||n006|m:1|ReqNodeNotAvail, Unavailable:n6\n17|PENDING||n007|m:1|QOSMaxJobsPerUserLimit\n"
        "18|RUNNING|n008|n008|m:2|None\n19|RUNNING|n009|n009|(null)|None\n"
    )
    assert parse_slurm_jobs(text, "m:1") == {
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


async def test_pbs_lists_placeholders_by_queue() -> None:
    run = Recorder("")
    assert await PbsBatchClient(run, AGENT, "idle", user="malletrain").find() == {}
    assert run.asked == [["qstat", "-f", "-w", "idle"]]
    run = Recorder(
        pbs_answer(
            j5={"job_state": "R", "exec_host": "pn004/0*8", "exec_vnode": "(pn004:ncpus=8)"},
            j6={
                "job_state": "Q",
                "Resource_List": {"select": "1:host=pn005"},
                "comment": "Not Running: Insufficient amount of resource: ncpus",
            },
            j7={"job_state": "F"},
            j8={
                "job_state": "Q",
                "Resource_List": {"select": "1:host=pn006:ncpus=4"},
                "comment": "Not Running: Queue not started.",
            },
        )
    )
    found = await PbsBatchClient(run, AGENT, "idle", user="malletrain").find()
    assert found == {
        "5.head": ListedPlaceholder("pn004", PlaceholderPhase.RUNNING),
        "6.head": ListedPlaceholder("pn005", PlaceholderPhase.PENDING),
        "8.head": ListedPlaceholder("pn006", PlaceholderPhase.PENDING, "PBS says 'Not Running: Queue not started.'"),
    }


FOREIGN = {
    "owner": {"Job_Owner": "grace@head"},
    "owner whose name begins alike": {"Job_Owner": "malletrain2@head"},
    "queue": {"queue": "main"},
    "name": {"Job_Name": "malletrain2"},
    "installation": {"argument_list": ARGUMENTS.replace("0123abcd", "0123abcde")},
    "no mark": {"argument_list": "<jsdl-hpcpa:Argument>600</jsdl-hpcpa:Argument>"},
    "no program of its own": {"argument_list": None},
}


@pytest.mark.parametrize("job", FOREIGN.values(), ids=FOREIGN)
async def test_a_pbs_job_of_somebody_else_is_neither_listed_nor_deleted(job: dict[str, object]) -> None:
    running = {"job_state": "R", "exec_host": "pn004/0*8"}
    answer = pbs_answer(j5={**running, **job}, j6=running)
    assert list(parse_pbs_jobs(answer, MARK)) == ["6.head"]
    run = Recorder(answer, "")
    await PbsBatchClient(run, AGENT, "idle", user="malletrain").cancel(["5.head", "6.head", "7.head"])
    assert run.asked[1:] == [["qdel", "6.head"]]


async def test_each_pbs_job_is_deleted_alone_and_one_that_has_ended_is_no_error() -> None:
    running = {"job_state": "R", "exec_host": "pn004/0*8"}
    answer = pbs_answer(j5=running, j6=running, j7=running, j8=running)
    gone, kept = CommandFailedError("qdel", 153, "Unknown Job Id"), CommandFailedError("qdel", 35, "has finished")
    refused = CommandFailedError("qdel", 1, "Unauthorized Request")
    run = Recorder(answer, gone, refused, kept, "")
    with pytest.raises(SourceError, match="Unauthorized"):
        await PbsBatchClient(run, AGENT, "idle", user="malletrain").cancel(
            [f"{number}.head" for number in (5, 6, 7, 8)]
        )
    assert run.asked[1:] == [["qdel", f"{number}.head"] for number in (5, 6, 7, 8)]


async def test_a_slurm_job_without_our_mark_is_not_cancelled() -> None:
    run = Recorder("11|RUNNING|n001|n001|malletrain:0123abcd|None\n12|RUNNING|n002|n002|malletrain:ffff|None\n", "")
    await SlurmBatchClient(run, AGENT, "scavenge").cancel(["11", "12", "13"])
    ours = ["--me", "--partition=scavenge", "--name=malletrain"]
    assert run.asked == [
        ["squeue", "--noheader", *ours, "--format=%i|%T|%N|%n|%k|%r"],
        ["scancel", *ours, "11"],
    ]
    run = Recorder("")
    await SlurmBatchClient(run, AGENT, "scavenge").cancel(["11"])
    assert len(run.asked) == 1


def live_pbs(name: str) -> str:
    return shared_path(f"schedulers/samples/pbs-live/{name}").read_text()


def test_what_a_live_pbs_said_of_placeholders_is_read() -> None:
    # These were submitted before placeholders had a mark.
    marked = re.sub(
        r"(<jsdl-hpcpa:Argument>)-P<",
        r"\1--installation</x>\g<1>0123abcd</x>\1-P<",
        live_pbs("qstat_f_placeholders.json"),
    )
    mark = PbsMark("malletrain", "scavenge", "malletrain", "0123abcd")
    assert {entry.node for entry in parse_pbs_jobs(marked, mark).values()} == {"pn001", "pn002", "pn003", "pn004"}
    assert parse_pbs_jobs(live_pbs("qstat_f_placeholders.json"), mark) == {}
    assert parse_pbs_jobs(live_pbs("qstat_f_empty.json"), mark) == {}
    assert set(parse_pbs_ends(live_pbs("qstat_f_multivnode.json")).values()) == {None}


async def test_pbs_tells_how_placeholders_ended() -> None:
    run = Recorder(
        pbs_answer(j5={"job_state": "F", "Exit_status": 127, "comment": "Job run at Sat"}),
        pbs_answer(j6={"job_state": "F", "Exit_status": 271}),
        pbs_answer(j7={"job_state": "R"}),
        CommandFailedError("qstat", 153, "qstat: Unknown Job Id 8.head"),
    )
    found = await PbsBatchClient(run, AGENT, "idle").explain(["5.head", "6.head", "7.head", "8.head"])
    assert {key: end.failed for key, end in found.items()} == {"5.head": True, "6.head": False, "8.head": True}
    assert "exit status 127" in found["5.head"].reason
    assert [argv[-1] for argv in run.asked] == ["5.head", "6.head", "7.head", "8.head"]
    with pytest.raises(SourceError, match="no contact"):
        await PbsBatchClient(Recorder(CommandFailedError("qstat", 2, "no contact")), AGENT, "idle").explain(["5.head"])


async def test_a_pbs_placeholder_asks_for_its_host_and_is_not_rerun() -> None:
    run = Recorder("77.head\n")
    assert await PbsBatchClient(run, AGENT, "idle").submit("pn004", 601.5) == "77.head"
    argv = run.asked[0]
    assert "select=1:host=pn004" in argv
    assert "walltime=601" in argv
    assert argv[argv.index("-r") + 1] == "n"
    assert "executable=/env/bin/python" in argv
    (arguments,) = (word for word in argv if word.startswith("argument_list="))
    words = re.findall("<jsdl-hpcpa:Argument>([^<]*)</jsdl-hpcpa:Argument>", arguments)
    assert words[:9] == [
        *["-P", "-m", "malletrain.agent", "--node", "pn004", "--head", "head:50066"],
        "--certificate-from",
        "pbs-script",
    ]
    encoded = base64.b64encode(f"{SECRET} pn004".encode()).decode()
    assert run.given == [f"#!/bin/sh\n# certificate: {encoded}\n"]
    assert parse_pbs_jobs(pbs_answer(j5={"job_state": "R", "argument_list": arguments.partition("=")[2]}), MARK)


async def test_an_argument_that_qsub_would_take_apart_is_refused() -> None:
    strange = replace(AGENT, marks="/var/a,b")
    with pytest.raises(SourceError, match="expected an argument without"):
        await PbsBatchClient(Recorder(), strange, "idle").submit("pn004", 600)


async def test_the_certificate_is_in_no_command_line_error_or_representation() -> None:
    refused = CommandFailedError("sbatch", 1, "Invalid account")
    for client in (SlurmBatchClient(Recorder(refused), AGENT, "q"), PbsBatchClient(Recorder(refused), AGENT, "q")):
        with pytest.raises(SourceError) as raised:
            await client.submit("n003", 600)
        assert isinstance(client.run, Recorder)
        (argv,), (script,) = client.run.asked, client.run.given
        assert LINE in script
        for text in (*argv, str(raised.value), repr(raised.value), repr(client), repr(Input(script))):
            assert LINE not in text
            assert SECRET not in text


_VALUE = st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=2) | st.just({"select": 1})
_JOB = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(["job_state", "exec_host", "Resource_List", "comment", "Exit_status"], _VALUE)
    | {"job_state": st.just("R"), "argument_list": st.just(ARGUMENTS) | _VALUE},
)


@given(st.text())
def test_garbage_is_an_error_of_the_source_and_no_other(text: str) -> None:
    for read in (
        partial(parse_slurm_jobs, mark=""),
        parse_slurm_ends,
        partial(parse_pbs_jobs, mark=MARK),
        parse_pbs_ends,
    ):
        try:
            read(text)
        except SourceError:
            continue


@given(_VALUE | st.dictionaries(st.sampled_from(["1.head", "2.head"]), _VALUE | _JOB))
def test_json_of_another_form_is_an_error_of_the_source_and_no_other(jobs: object) -> None:
    for read in (partial(parse_pbs_jobs, mark=MARK), parse_pbs_ends):
        try:
            read(json.dumps({"pbs_version": "23", "Jobs": jobs}))
        except SourceError:
            continue
