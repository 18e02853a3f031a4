"""Arrays as the command reads them: parameters, their combinations, and templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.caller.job_array import ArrayRequest, array_specs, parse_array
from malletrain.caller.job_file import read_job_file
from malletrain.caller.job_request import JobRequest
from malletrain.cli.jobs.job_output import parameters_in_words
from malletrain.cli.jobs.needs import parse_nodes
from malletrain.runtime.errors import InvalidInputError

ARRAY = "lr=0.1,0.01 depth=18,50 %3"


def test_parameters_and_limit() -> None:
    found = parse_array(ARRAY)
    assert (found.parameters, found.at_once) == ({"lr": ["0.1", "0.01"], "depth": ["18", "50"]}, 3)
    assert parse_array("lr=0.1%10") == ArrayRequest({"lr": ["0.1"]}, 10)
    assert parse_array("lr=0.1").at_once == 0
    assert [parameters_in_words(values) for values in found.combinations()] == [
        "depth=18 lr=0.1",
        "depth=50 lr=0.1",
        "depth=18 lr=0.01",
        "depth=50 lr=0.01",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "each parameter once"),
        ("lr", "each parameter once"),
        ("lr=1 lr=2", "each parameter once"),
        ("lr=", "values of lr"),
        ("lr=1,1", "values of lr"),
        ("l.r=1", "names of 1 to 64"),
        ("lr=1 %0", "%N with N from 1"),
        ("lr=1 %x", "%N with N from 1"),
        ("%3", "parameters with values"),
        ("a=" + ",".join(map(str, range(40))) + " b=" + ",".join(map(str, range(30))), "at most 1000 combinations"),
    ],
)
def test_what_is_no_array_is_refused(text: str, expected: str) -> None:
    with pytest.raises(InvalidInputError, match=expected) as caught:
        parse_array(text)
    assert caught.value.field == "--array"


def test_each_job_has_its_values_in_command_and_variables() -> None:
    request = JobRequest(
        command=["python", "train.py", "--lr={lr}", '--json={"a": {b}}'], env={"DEPTH": "{depth}"}, backend="command"
    )
    specs = array_specs(request, parse_array(ARRAY))
    assert len(specs) == 4
    assert {spec.array.max_admitted for spec in specs} == {3}
    assert {spec.name for spec in specs} == {"train"}
    last = specs[3]
    assert list(last.command) == ["python", "train.py", "--lr=0.01", '--json={"a": {b}}']
    assert (dict(last.environment), dict(last.array_parameters)) == ({"DEPTH": "50"}, {"lr": "0.01", "depth": "50"})
    with pytest.raises(InvalidInputError, match=r"\{depth\} in the command"):
        array_specs(JobRequest(command=["python", "train.py", "{lr}"]), parse_array(ARRAY))


def test_each_script_is_looked_at_where_a_parameter_chooses_it(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print(1)\n")
    (tmp_path / "elastic.py").write_text("import torch.distributed as dist\ndist.init_process_group()\n")
    request = JobRequest(command=["python", "{script}.py"], workdir=tmp_path, max_nodes=4)
    plain, elastic = array_specs(request, parse_array("script=plain,elastic"))
    assert plain.backend != elastic.backend
    assert (plain.max_nodes, elastic.max_nodes) == (1, 4)


def test_a_job_file_may_have_an_array() -> None:
    text = 'command = ["python", "train.py", "{lr}"]\narray = "lr=1,2 %1"\n'
    assert read_job_file(text, "job.toml", parse_nodes).array == "lr=1,2 %1"
    for wrong, said in (('array = "lr"\n', "array to be each parameter once"), ("array = 3\n", "array to be a text")):
        with pytest.raises(InvalidInputError, match=said) as caught:
            read_job_file('command = ["true"]\n' + wrong, "job.toml", parse_nodes)
        assert caught.value.field == "job.toml:2"
