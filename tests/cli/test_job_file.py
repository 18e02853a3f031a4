"""Job files in TOML: every option by its name, errors with file and line, and printed back the same."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.caller.job_file import JOB_KEYS, job_file_text, line_of, read_job_file, read_job_text
from malletrain.caller.job_request import JobRequest, job_spec, parse_topology
from malletrain.cli.jobs.needs import parse_nodes
from malletrain.cli.jobs.submit import job_file_of, submit
from malletrain.runtime.errors import InvalidInputError
from malletrain.v1 import resources_pb2
from tests.system.deployment import run_command

WHOLE = """\
command = ["python", "train.py", "--lr", "0.1"]
name = "resnet"
min = 2
max = 8
permitted = [2, 4, 8]
slots = 4
curve = { 2 = 100, 4 = 190.5 }
scale-up = 12.5
scale-down = 3
backend = "torchrun"
weight = 2.5
target-samples = 90000
max-restarts = 0
profile = "never"
family = "resnets"
project = "vision"
gpu = "a100"
gpu-memory = "40G"
gpus = 4
cores = 32
memory = "256G"
constraint = "ib&big"
pool = "gpu"
exclude = "n07,n[11-13]"
topology = "require=2"
burst-buffer = "2TB"
cold = true
workdir = "/tmp"
start-limit = 600
step-limit = 60.5
evaluation-limit = 120
save-limit = 30
release-grace = 5
leave-grace = 10
after = ["j000001", "prepare"]
after-ok = "a000012,j000013"

[env]
SEED = "1"
"QUOTE" = "a \\"b\\""
"""


def read(text: str) -> JobRequest:
    return read_job_file(text, "job.toml", parse_nodes)


def test_a_file_with_every_key() -> None:
    request = read(WHOLE)
    assert (request.min_nodes, request.max_nodes, request.permitted) == (2, 8, (2, 4, 8))
    assert (request.curve, request.exclude) == (((2, 100.0), (4, 190.5)), ("n07", "n11", "n12", "n13"))
    assert (request.env, request.workdir) == ({"SEED": "1", "QUOTE": 'a "b"'}, Path("/tmp"))
    assert (request.max_restarts, request.cold, request.step_limit) == (0, True, 60.5)
    assert (request.after, request.after_ok) == (("j000001", "prepare"), ("a000012", "j000013"))


def test_the_keys_are_the_options_of_the_command() -> None:
    options = {name.replace("_", "-") for name in inspect.signature(submit).parameters}
    of_submissions = {"file", "request-id", "wait", "as-json", "env-file", "mirror", "context"}
    keys = {{"min": "min-nodes", "max": "max-nodes"}.get(key, key) for key in JOB_KEYS}
    assert keys == options - of_submissions


def test_a_job_is_printed_as_the_file_that_describes_it() -> None:
    spec = job_spec(read(WHOLE))
    spec.ClearField("launch_note")
    text = job_file_text(spec)
    again = job_spec(read(text))
    again.ClearField("launch_note")
    assert again == spec
    assert 'gpu-memory = "40G"' in text
    short = job_file_text(job_spec(read('command = ["true"]\nbackend = "command"\n')))
    assert [line.partition(" ")[0] for line in short.splitlines()] == [
        "command",
        "name",
        "workdir",
        "min",
        "max",
        "backend",
    ]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), st.floats(0.01, 1e6))
def test_any_text_and_number_is_read_as_it_was_written(text: str, weight: float) -> None:
    spec = resources_pb2.JobSpec(command=[text], name=text, min_nodes=1, max_nodes=1, weight=weight)
    spec.environment["NAME"] = text
    request = read(job_file_text(spec))
    assert (list(request.command), request.name, request.env) == ([text], text, {"NAME": text})
    assert request.weight == weight


def test_each_kind_of_required_group_is_read_as_it_was_written() -> None:
    for text in ("require", "require=8", "require-replica", "require-replica=2"):
        topology, level = parse_topology(text)
        spec = resources_pb2.JobSpec(command=["true"], min_nodes=2, max_nodes=4, nodes_per_replica=2)
        spec.topology, spec.topology_level = topology, level
        request = read(job_file_text(spec))
        assert (request.topology, request.nodes_per_replica) == (text, 2)


def test_a_member_of_a_fleet_is_no_job_file() -> None:
    spec = resources_pb2.JobSpec(command=["true"])
    spec.fleet.SetInParent()
    with pytest.raises(InvalidInputError, match="no member of a fleet"):
        job_file_text(spec)


COMMAND = 'command = ["true"]\n'


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (COMMAND + "max-restart = 3\n", 2, "such as max-restarts, got 'max-restart'"),
        (COMMAND + "max_restarts = 3\n", 2, "such as max-restarts"),
        (COMMAND + "\n# a note\nzzz = 3\n", 4, "one of command, name"),
        (COMMAND + "[env]\nSEED = 1\n", 3, "env.SEED to be a text in quotes"),
        (COMMAND + "env.SEED = 1\n", 2, "env.SEED to be a text in quotes"),
        (COMMAND + 'env = { A = "1", SEED = 1 }\n', 2, "env.SEED to be a text in quotes"),
        (COMMAND + 'min = "2"\n', 2, "min to be a whole number without quotes, got '2'"),
        (COMMAND + "permitted = [1,\n  2.5]\n", 2, "permitted to be a whole number"),
        (COMMAND + "curve = { one = 3 }\n", 2, "curve to be a whole number"),
        (COMMAND + 'gpu-memory = "40X"\n', 2, "gpu-memory to be a size such as 40G"),
        (COMMAND + "gpus = 0\n", 2, "gpus to be a whole number from 1"),
        (COMMAND + 'exclude = "n[1"\n', 2, "exclude to be nodes such as"),
        (COMMAND + 'burst-buffer = "much"\n', 2, "burst-buffer to be whole GB"),
        (COMMAND + "weight = nan\n", 2, "weight to be a finite number"),
        ('name = "a"\ncommand = "python train.py"\n', 2, "command to be a list of texts"),
        (COMMAND + "min = \n", 2, "TOML"),
        (COMMAND + "min = 1\nmin = 2\n", 3, "TOML"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, expected: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(text)
    assert caught.value.field == f"job.toml:{line}"
    assert expected in str(caught.value)


def test_a_file_without_a_command() -> None:
    with pytest.raises(InvalidInputError, match=r"job\.toml: expected a key command"):
        read('name = "a"\n')


def test_values_of_variables_are_not_quoted() -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(COMMAND + "[env]\nTOKEN = 123456789\n")
    assert "123456789" not in str(caught.value)


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    with pytest.raises(InvalidInputError, match="a readable file"):
        read_job_text(path)
    path.write_bytes(b"name = 'a'\nfamily = '\xff'\n")
    with pytest.raises(InvalidInputError) as caught:
        read_job_text(path)
    assert caught.value.field == f"{path}:2"
    path.write_bytes(b"#" * 300_000)
    with pytest.raises(InvalidInputError, match="at most 262144 bytes"):
        read_job_text(path)


def test_lines_of_keys() -> None:
    text = "a = 1\n[env]\nSEED = 1\n'b' = 2\n"
    assert [line_of(text, key) for key in ("a", "env", "b", "c")] == [1, 2, 4, 1]
    assert line_of(text, "env", "SEED") == 3


def test_which_commands_are_job_files() -> None:
    assert job_file_of(["job.toml"]) == Path("job.toml")
    assert job_file_of(["python", "job.toml"]) is None
    assert job_file_of(["./train"]) is None


def test_the_command_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(COMMAND + "max-restart = 3\n")
    done = run_command("submit", "job.toml", cwd=tmp_path, timeout=100)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: job.toml:2: expected a known key, such as max-restarts")
