"""Variables of a job: from options, files and the shell; errors name the place and never a value."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.cli.jobs.job_environment import job_environment, read_environment_file
from malletrain.job_manager.redaction import redact_environment
from malletrain.runtime.errors import InvalidInputError

SHELL = {"WANDB_API_KEY": "hunter2", "EMPTY": ""}


def test_a_name_alone_takes_the_value_of_the_shell_and_stands_on_no_command_line() -> None:
    said: list[str] = []
    assert job_environment(["WANDB_API_KEY", "EMPTY", "A=b=c"], None, SHELL, said.append) == {**SHELL, "A": "b=c"}
    assert said == []
    job_environment(["HF_TOKEN=hunter2"], None, SHELL, said.append)
    assert "HF_TOKEN" in said[0]
    assert "hunter2" not in said[0]


@pytest.mark.parametrize("pair", ["=hunter2", "1A=hunter2", "A B=hunter2", "A-B", "MISSING", ""])
def test_what_is_no_variable_is_refused_without_its_value(pair: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^--env: expected") as refused:
        job_environment([pair], None, SHELL)
    assert "hunter2" not in str(refused.value)


def test_a_file_has_a_line_for_each(tmp_path: Path) -> None:
    file = tmp_path / "job.env"
    file.write_text(
        "\ufeff# secrets\r\n\nexport HF_TOKEN=abc\r\nWANDB_API_KEY\n  QUOTED = 'two words'\n"
        'DOUBLE="a"\nHASH=a # b\nA=\nÄ=1\n'
    )
    with pytest.raises(InvalidInputError, match=r"job\.env:9: expected NAME=VALUE"):
        read_environment_file(file, SHELL)
    file.write_text(file.read_text().replace("Ä", "MONEY"))
    found = read_environment_file(file, SHELL)
    assert found == {
        **{"HF_TOKEN": "abc", "WANDB_API_KEY": "hunter2", "QUOTED": "two words", "DOUBLE": "a", "HASH": "a # b"},
        **{"A": "", "MONEY": "1"},
    }
    assert redact_environment(found)["HF_TOKEN"] == "***"
    assert job_environment(["HF_TOKEN=of the option"], [file], SHELL)["HF_TOKEN"] == "of the option"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"A=1\nB C=hunter2\n", ":2: expected NAME=VALUE"),
        (b"A=1\n=hunter2\n", ":2: expected NAME=VALUE"),
        (b"A=1\n\nMISSING\n", ":3: expected MISSING=VALUE"),
        (b"A='hunter2\n", ":1: expected a value of A whose quotes end"),
        (b'A="\n', ":1: expected a value of A whose quotes end"),
        (b"A=1\nB=\xff\n", ":2: expected text in UTF-8"),
        (b"A=1\nB=\0\n", ":2: expected no zero bytes"),
        (b"A=" + b"x" * (128 * 1024), ": expected at most 131072 bytes"),
    ],
)
def test_a_bad_file_is_refused_by_file_and_line(tmp_path: Path, content: bytes, place: str) -> None:
    file = tmp_path / "job.env"
    file.write_bytes(content)
    with pytest.raises(InvalidInputError) as refused:
        read_environment_file(file, {})
    assert f"{file}{place}" in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["missing.env", "."])
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^--env-file: expected a readable file"):
        read_environment_file(tmp_path / name, {})
    with pytest.raises(InvalidInputError, match=r"^--env-file: expected a file or a pipe"):
        read_environment_file(Path("/dev/zero"), {})
