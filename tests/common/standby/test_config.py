from __future__ import annotations

import sys
from pathlib import Path

import pytest

from malletrain.common.standby.config import StandbyConfig, parse_forkable, same_interpreter, standby_config_for
from malletrain.common.standby.preload import RefusedError

UNBUFFERED = {"PYTHONUNBUFFERED": "1"}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("./train.sh", "the command is not"),
        ("python -c pass", "the command is not"),
        ("python -x train.py", "the command is not"),
        ("python -W error train.py", "options: -W error"),
        ("python -O train.py", "options: -O"),
        ("python -I -m train", "options: -I"),
        ("python4.9 train.py", "python4.9 is not found"),
    ],
)
def test_commands_that_need_a_new_interpreter_are_refused(command: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        parse_forkable(command.split(), "/", UNBUFFERED)


def test_unbuffered_output_must_be_in_the_environment_too() -> None:
    assert parse_forkable([sys.executable, "-u", "train.py"], "/", UNBUFFERED)[1] == sys.executable
    with pytest.raises(RefusedError, match="PYTHONUNBUFFERED"):
        parse_forkable([sys.executable, "-u", "train.py"], "/", {})


def test_the_interpreter_is_found_by_the_jobs_own_path(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    found = parse_forkable(["python", "-m", "train"], "/", {"PATH": str(tmp_path)})[1]
    assert found == str(tmp_path / "python")
    # The same program in another folder has other packages.
    assert not same_interpreter(found, sys.executable)
    assert same_interpreter(sys.executable, sys.executable)
    assert not same_interpreter(str(tmp_path / "none"), sys.executable)


def test_a_recipe_has_no_variables_of_a_job_and_takes_those_that_differ() -> None:
    config = standby_config_for("/p", {"A": "1", "B": "2", "MALLETRAIN_JOB_ID": "j1"})
    assert config.environment == {"A": "1", "B": "2"}
    assert config.like({"A": "3", "C": "4", "D": "5"}, ["A", "B", "C"]).environment == {"A": "3", "C": "4"}


def test_a_barred_module_is_not_imported_any_more() -> None:
    assert StandbyConfig("/p", {}, ("a", "b")).without("a") == StandbyConfig("/p", {}, ("b",), ("a",))
