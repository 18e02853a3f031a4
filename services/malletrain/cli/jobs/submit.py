"""`malletrain submit`: hand in one job, or several from a file; and what is said of usual mistakes in its arguments."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import grpc
import typer
from google.protobuf import json_format

from malletrain.caller.dependencies import name_identifiers, parse_names
from malletrain.caller.job_array import array_specs, parse_array, range_note
from malletrain.caller.job_file import read_job_file, read_job_text
from malletrain.caller.job_request import JobRequest, job_spec
from malletrain.caller.option_values import NAMES
from malletrain.caller.stubs import ServiceCallError
from malletrain.cli.jobs.job_environment import EnvFileOption, EnvOption, job_environment
from malletrain.cli.jobs.job_output import job_dict
from malletrain.cli.jobs.mirroring import SiteSignals, SlurmComment, mirror_until_ended, run_command, site_job
from malletrain.cli.jobs.naming import dependency_of
from malletrain.cli.jobs.needs import parse_nodes, tell_of_unsuited
from malletrain.cli.jobs.waiting import INTERRUPTED, exit_status, unfinished_in_words, wait_until_ended
from malletrain.cli.jobs.waiting_reasons import tell_what_is_too_large
from malletrain.cli.shared.help_panels import help_panels
from malletrain.cli.shared.output import JsonOption, print_json, tell
from malletrain.cli.shared.stubs import DEADLINE_SECONDS, ServiceStubs, connect
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import job_manager_pb2, resources_pb2

_MAX_SCRIPT_BYTES = 1 << 20
_OPTIONS = {
    "array.max_admitted": "--array",
    "array_parameters": "--array",
    "burst_buffer_gb": "--burst-buffer",
    "cold_start": "--cold",
    "dependencies": "--after",
    "environment": "--env",
    "excluded_nodes": "--exclude",
    "gpu_memory_mib": "--gpu-memory",
    "max_nodes": "--max",
    "memory_mib": "--memory",
    "min_nodes": "--min",
    "permitted_nodes": "--permitted",
    "scale_down_seconds": "--scale-down",
    "scale_up_seconds": "--scale-up",
    "slots_per_node": "--slots",
    "topology_level": "--topology",
    "working_directory": "--workdir",
    "start_seconds": "--start-limit",
    "step_seconds": "--step-limit",
    "evaluation_seconds": "--evaluation-limit",
    "save_seconds": "--save-limit",
    "release_grace_seconds": "--release-grace",
    "leave_grace_seconds": "--leave-grace",
}
"""Options that have other names than the fields of a specification which they fill."""
_NOT_OF_OPTIONS = ("command", "fleet", "launch_note")
_GROUPS = re.compile(r"(?:needs|limits|dependencies)\.")
_FIELD = re.compile(r"specs\[\d+\]\.((?:(?:needs|limits|dependencies|array)\.)?[a-z_]+)")
_NUMBERS_OF_NODES = re.compile(r"\b(min_nodes|max_nodes)\b")


@help_panels(
    {
        "Scale": (
            "min_nodes",
            "max_nodes",
            "permitted",
            "slots",
            "nodes_per_replica",
            "curve",
            "scale_up",
            "scale_down",
            "profile",
            "family",
        ),
        "What it needs of its nodes": (
            *("gpu", "gpu_memory", "gpus", "cores", "memory", "constraint", "pool", "exclude", "topology"),
            "burst_buffer",
        ),
        "How it is started": ("backend", "cold", "workdir", "env", "env_file"),
        "When it ends, and what is a failure": (
            *("target_samples", "max_restarts", "start_limit", "step_limit", "evaluation_limit", "save_limit"),
            *("release_grace", "leave_grace"),
        ),
        "Many jobs": ("array", "after", "after_ok"),
    }
)
def submit(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Program and arguments, after `--`; or a job file, whose name ends in .toml."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name for people; by default the script's.")] = "",
    min_nodes: Annotated[int, typer.Option("--min", help="Smallest scale in nodes.")] = 1,
    max_nodes: Annotated[
        int | None,
        typer.Option("--max", help="Largest scale in nodes; by default 8, and 1 for the backend command."),
    ] = None,
    permitted: Annotated[str, typer.Option(help="Permitted scales, e.g. 1,2,4,8.")] = "",
    slots: Annotated[int, typer.Option(help="Worker processes per node; 0: one for each GPU, or 1.")] = 0,
    nodes_per_replica: Annotated[
        int, typer.Option(help="Nodes that one copy of the model is divided among; the scale is whole replicas.")
    ] = 0,
    curve: Annotated[str, typer.Option(help="Scaling curve, nodes:samples/s, e.g. 1:100,2:190,4:350.")] = "",
    scale_up: Annotated[float | None, typer.Option(help="Stall of a growth in seconds.")] = None,
    scale_down: Annotated[float | None, typer.Option(help="Stall of a shrink in seconds.")] = None,
    backend: Annotated[
        str,
        typer.Option(
            help="horovod, torchrun or command; by default what the script shows, or else the operator's choice."
        ),
    ] = "",
    weight: Annotated[float, typer.Option(help="Priority weight.")] = 1.0,
    value: Annotated[
        str,
        typer.Option(
            help="What its speed is worth: linear, diminishing=0.5, points=1:1,4:3 (speedup:value), or deadline=24h,"
            " which counts 4 times what is needed to reach the target in time (deadline=24h:8: 8 times), or goodput,"
            " by which samples of larger batches count less."
        ),
    ] = "linear",
    target_samples: Annotated[
        int,
        typer.Option(help="Complete after so many samples; 0: no target."),
    ] = 0,
    max_restarts: Annotated[
        int | None, typer.Option(help="Restarts after failures before giving up; 0: it is started once.")
    ] = None,
    profile: Annotated[
        str, typer.Option(help="Measure its scaling curve on purpose: auto (where none is known), always, or never.")
    ] = "",
    family: Annotated[str, typer.Option(help="Jobs of one family share scaling curve and rescale costs.")] = "",
    project: Annotated[
        str, typer.Option(help="Project that its usage is accounted to: one of your Unix groups, or as operators list.")
    ] = "",
    gpu: Annotated[
        str, typer.Option(help="Kind of GPU that each of its nodes must have, e.g. a100; gpu: any kind.")
    ] = "",
    gpu_memory: Annotated[
        str | None, typer.Option(help="Least memory of each GPU of its nodes, e.g. 40G, as for all sizes 1024 M each.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="Least number of GPUs of each of its nodes.")] = None,
    cores: Annotated[
        int | None, typer.Option(help="Least number of cores of each of its nodes, as the scheduler counts them.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Least memory of each of its nodes, e.g. 256G.")] = None,
    constraint: Annotated[
        str, typer.Option(help="Features that each of its nodes must have: ib, ib&big (both) or ib|roce (one of them).")
    ] = "",
    pool: Annotated[str, typer.Option(help="Pool or partition that its nodes must be of.")] = "",
    exclude: Annotated[str, typer.Option(help="Nodes that it must not have, e.g. n07,n[11-13].")] = "",
    topology: Annotated[
        str,
        typer.Option(
            help="prefer: nodes near each other, in few racks or on few switches; require: all in one of the innermost "
            "groups, require=2 in one of level 2; require-replica, require-replica=2: those of each replica; none: any."
        ),
    ] = "none",
    burst_buffer: Annotated[
        str, typer.Option(help="Burst buffer that it holds until its end, e.g. 2TB, 500GB or 2000 (GB).")
    ] = "",
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Start each worker as a new interpreter, never forked from a standby process."),
    ] = False,
    env: EnvOption = None,
    env_file: EnvFileOption = None,
    start_limit: Annotated[
        float, typer.Option(help="Longest start in seconds, until it trains; 0: half an hour, as for all limits.")
    ] = 0.0,
    step_limit: Annotated[float, typer.Option(help="Longest time in seconds from one batch to the next.")] = 0.0,
    evaluation_limit: Annotated[float, typer.Option(help="Longest evaluation in seconds.")] = 0.0,
    save_limit: Annotated[float, typer.Option(help="Longest save of a checkpoint in seconds.")] = 0.0,
    release_grace: Annotated[
        float, typer.Option(help="Seconds to save and end on a node that is taken; 0: the operator's choice.")
    ] = 0.0,
    leave_grace: Annotated[
        float, typer.Option(help="Seconds to save and end before a start at another scale; 0: a minute.")
    ] = 0.0,
    after: Annotated[
        str,
        typer.Option(
            metavar="JOB[,JOB]",
            help="Start once these jobs have ended, however: identifiers of jobs or arrays, or names of jobs of yours.",
        ),
    ] = "",
    after_ok: Annotated[
        str,
        typer.Option(
            metavar="JOB[,JOB]",
            help="Start once these have completed; it is cancelled when one of them fails or is cancelled.",
        ),
    ] = "",
    array: Annotated[
        str,
        typer.Option(
            help="A job for each combination of parameters, for which {lr} and {depth} stand in the command and in"
            " variables: 'lr=0.1,0.01 depth=18,50 %2', with at most two at once."
        ),
    ] = "",
    workdir: Annotated[Path | None, typer.Option(help="Folder that the workers start in; by default this one.")] = None,
    file: Annotated[Path | None, typer.Option(help="JSON list of job specs, in place of a command.")] = None,
    request_id: Annotated[str, typer.Option(help="The same id again submits nothing twice.")] = "",
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            "-w",
            help="Wait until it has ended. Exit status: 0 completed, 3 failed, 4 cancelled; Ctrl-C leaves it running.",
        ),
    ] = False,
    mirror: Annotated[
        bool,
        typer.Option(
            "--mirror",
            help="As --wait, for a job of the site's own queue: if that is ended (SIGTERM, SIGINT), ours is cancelled;"
            " with Slurm its comment says how ours stands.",
        ),
    ] = False,
    as_json: Annotated[bool, JsonOption] = False,
) -> None:
    """Submit an elastic training: `malletrain submit --min 1 --max 8 -- python train.py`.

    In place of a command, `malletrain submit job.toml` reads a job file: a key for each option, and `command`.
    Options beside it take precedence.

    It is complete when it calls `done()` or reaches its target, or when rank 0 (or its one process) ends with exit
    status 0 without having been asked to leave. Any other exit status is a failure: the job starts again from its
    checkpoint.
    """
    given = locals()  # by the names of `JobRequest`
    if (file is None) == (not command):
        raise InvalidInputError("command", "a command after `--`, or a job file, or --file, and one of them only")
    notes: list[str] = []
    if file is not None:
        specs = read_specs(file)
    else:
        options: dict[str, Any] = {
            **{option: value for option, value in given.items() if option in NAMES},
            "permitted": parse_sizes(permitted),
            "curve": parse_curve(curve),
            "exclude": parse_nodes(exclude),
            "env": job_environment(env, env_file, os.environ, tell),
            "after": parse_names("--after", after),
            "after_ok": parse_names("--after-ok", after_ok),
            "array": array,
        }
        request = _request(command or [], options, context)
        specs, notes = _specs_of(request, context)
    with SiteSignals() if mirror else nullcontext() as signals, connect() as stubs:
        if file is None:
            name_identifiers(specs, lambda part, text: dependency_of(stubs, part, text, time.time()))
        submission = job_manager_pb2.SubmitJobsRequest(request_id=request_id or uuid.uuid4().hex, specs=specs)
        stored = _submit(stubs, submission, of_file=file is not None)
        for note in notes:
            tell(note)
        tell_what_is_too_large(stubs, stored)
        for line in tell_of_unsuited(stubs, stored):
            tell(line)
        if not (wait or mirror):
            _print(stored, as_json=as_json)
            return
        if not as_json:
            _print(stored, as_json=False)
        if signals is not None:
            _mirror(stubs, stored, signals, as_json=as_json)
        _wait(stubs, stored, as_json=as_json)


def _specs_of(request: JobRequest, context: typer.Context) -> tuple[list[resources_pb2.JobSpec], list[str]]:
    """The specifications of what is asked for, and what the submitter should know of them."""
    array = parse_array(request.array) if request.array else None
    specs = [job_spec(request)] if array is None else array_specs(request, array)
    names = {name for option in context.command.params for name in option.opts if name.startswith("--")}
    script = script_of(request.command, request.workdir or Path.cwd())
    notes = [specs[0].launch_note, range_note(array) if array else "", *notes_on_script(request.command, script, names)]
    return specs, [note for note in notes if note]


def _submit(
    stubs: ServiceStubs, submission: job_manager_pb2.SubmitJobsRequest, *, of_file: bool
) -> list[resources_pb2.Job]:
    """Submit jobs; errors name the options, where the jobs come of one command."""
    try:
        return list(stubs.job_manager.SubmitJobs(submission, timeout=DEADLINE_SECONDS).jobs)
    except grpc.RpcError as error:
        details = error.details() or ""
        if of_file or error.code() != grpc.StatusCode.INVALID_ARGUMENT:
            raise
        raise ServiceCallError(in_options(details), wrong_use=True) from error


def _request(command: Sequence[str], options: Mapping[str, Any], context: typer.Context) -> JobRequest:
    """What is asked for: a command with its options, or a job file with those that were given beside it."""
    refuse_other_files(command)
    path = job_file_of(command)
    if path is None:
        return JobRequest(command=command, **options)
    request = read_job_file(read_job_text(path), str(path), parse_nodes)
    beside = _given_options(options, context)
    if "env" in beside:
        beside["env"] = {**request.env, **beside["env"]}
    return replace(request, **beside)


def job_file_of(command: Sequence[str]) -> Path | None:
    """The job file that stands in place of a command: its only word, which ends in `.toml`; None: it is a command."""
    return Path(command[0]) if len(command) == 1 and command[0].endswith(".toml") else None


def _given_options(options: Mapping[str, Any], context: typer.Context) -> dict[str, Any]:
    """The options that stand on the command line."""

    def is_given(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    return {
        name: value for name, value in options.items() if is_given(name) or (name == "env" and is_given("env_file"))
    }


def _print(jobs: Sequence[resources_pb2.Job], *, as_json: bool) -> None:
    if as_json:
        print_json([job_dict(job) for job in jobs])
        return
    if array := jobs[0].array_id:
        typer.echo(array)
        tell(f"{len(jobs)} jobs, {jobs[0].id} to {jobs[-1].id}: malletrain jobs --array {array}")
        return
    for job in jobs:
        typer.echo(job.id)


def _wait(stubs: ServiceStubs, jobs: Sequence[resources_pb2.Job], *, as_json: bool) -> None:
    try:
        ended = wait_until_ended(stubs, jobs)
    except KeyboardInterrupt:
        tell(unfinished_in_words(jobs))
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        _print(ended, as_json=True)
    raise typer.Exit(exit_status(ended))


def _mirror(stubs: ServiceStubs, jobs: Sequence[resources_pb2.Job], signals: SiteSignals, *, as_json: bool) -> NoReturn:
    ended = mirror_until_ended(stubs, jobs, SlurmComment(site_job(os.environ), run_command), signals)
    if as_json:
        _print(ended, as_json=True)
    raise typer.Exit(exit_status(ended))


def parse_sizes(text: str) -> list[int]:
    """`1,2,4` as numbers of nodes."""
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise InvalidInputError("--permitted", "whole numbers separated by commas", text) from None


def parse_curve(text: str) -> list[tuple[int, float]]:
    """`1:100,2:190` as numbers of nodes with samples/s."""
    points = []
    for part in filter(None, text.split(",")):
        nodes, _, rate = part.partition(":")
        try:
            points.append((int(nodes), float(rate)))
        except ValueError:
            raise InvalidInputError("--curve", "NODES:SAMPLES_PER_SECOND pairs separated by commas", part) from None
    return points


def read_specs(path: Path) -> list[resources_pb2.JobSpec]:
    """Job specs in protobuf-JSON from a file holding a list of them."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInputError("--file", f"a readable file ({error.strerror})", str(path)) from None
    request = job_manager_pb2.SubmitJobsRequest()
    try:
        json_format.Parse(f'{{"specs": {text}}}', request)
    except json_format.ParseError as error:
        hint = (
            f"; a job file stands in place of the command: malletrain submit {path}" if path.suffix == ".toml" else ""
        )
        raise InvalidInputError(str(path), f"a JSON list of job specs ({error}){hint}") from None
    return list(request.specs)


def refuse_other_files(command: Sequence[str]) -> None:
    """Refuse a job file of another kind, or one with words after it.

    Raises:
        InvalidInputError: it is one.
    """
    first = Path(command[0])
    if len(command) == 1 and first.suffix in (".yaml", ".yml", ".json"):
        expected = "a command after `--`, or a job file in TOML; --file reads a JSON list of job specs"
        raise InvalidInputError("command", expected, command[0])
    if len(command) > 1 and first.suffix == ".toml":
        raise InvalidInputError("command", "a job file alone: its command stands in it", " ".join(command))


def in_options(message: str) -> str:
    """An error of JobManager about the one job that was submitted, with the fields as the command names them."""
    match = _FIELD.match(message)
    if not match:
        return message
    rest, gets, value = message[match.end() :].rpartition(", got ")
    expected = _NUMBERS_OF_NODES.sub(lambda name: _OPTIONS[name[0]], rest)
    return option_of(match[1]) + expected + gets + value


def option_of(field: str) -> str:
    """The option that fills a field of a specification, e.g. `needs.gpu`; the field itself where none does."""
    name = _GROUPS.sub("", field)
    if name in _NOT_OF_OPTIONS:
        return name
    return _OPTIONS.get(name, "--" + name.replace("_", "-"))


def script_of(command: Sequence[str], directory: Path) -> tuple[int, str]:
    """The place of the script in a command, and its text; (0, ""): there is none that can be read."""
    for place, word in enumerate(command):
        if word.endswith((".py", ".sh", ".sbatch", ".slurm", ".pbs")):
            path = directory / word
            try:
                if not path.is_file():  # a pipe would be waited for
                    return 0, ""
                with path.open("rb") as file:
                    return place, file.read(_MAX_SCRIPT_BYTES).decode("utf-8", "replace")
            except OSError:
                return 0, ""  # JobManager says what is wrong with it
    return 0, ""


def notes_on_script(command: Sequence[str], script: tuple[int, str], options: Collection[str]) -> list[str]:
    """What is probably not meant as it stands. Pure.

    Args:
        command: Program and arguments.
        script: As `script_of`.
        options: Options of the verb, e.g. `--max`.
    """
    place, text = script
    if not text:
        return []
    name = command[place]
    names = (argument.partition("=")[0] for argument in command[place + 1 :])
    notes = [
        f"{word} is handed to {name}, which does not mention it: options of malletrain stand before `--`"
        for word in names
        if word in options and not re.search(rf"\b{word[2:].replace('-', '[-_]')}\b", text)
    ]
    if directive := re.search(r"^#(SBATCH|PBS) ", text, re.MULTILINE):
        notes.append(f"#{directive[1]} lines of {name} are not read: say what they ask for by options or in a job file")
    return notes
