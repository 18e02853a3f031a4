"""--config for verbs that call services, and variables that look like settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from malletrain.cli.main import application, config_after_verb
from malletrain.cli.shared.configured import unknown_variables
from malletrain.common.environment import JOB_ID


@pytest.mark.parametrize("verb", [["jobs"], ["nodes"], ["plan"], ["token"], ["job", "j000001"], ["logs", "j000001"]])
def test_every_verb_reads_the_named_file(verb: list[str], tmp_path: Path) -> None:
    config = tmp_path / "other.toml"
    config.write_text("[addresses]\nmonitor = 'nowhere'\n")
    done = CliRunner().invoke(application(), [*verb, "--config", str(config)])
    assert "addresses.monitor" in str(done.exception)
    done = CliRunner().invoke(application(), [*verb, "--config", str(tmp_path / "none.toml")])
    assert "--config: expected a readable TOML file" in str(done.exception)


def test_the_option_is_described_once() -> None:
    for verb in ("jobs", "doctor", "up"):
        assert CliRunner().invoke(application(), [verb, "--help"]).stdout.count("--config") == 1, verb


def test_it_may_come_before_the_verb(tmp_path: Path) -> None:
    assert config_after_verb(["--config", "a.toml", "jobs", "--json"]) == ["jobs", "--config", "a.toml", "--json"]
    assert config_after_verb(["--config=a.toml", "pki", "show"]) == ["pki", "show", "--config=a.toml"]
    assert config_after_verb(["--config", "a.toml", "pki", "--help"]) == ["pki", "--config", "a.toml", "--help"]
    submit = ["submit", "--", "python", "train.py", "--config", "of-mine"]
    for words in ([], ["jobs"], ["--config"], ["--config", "a.toml"], ["--config", "a.toml", "--help"], submit):
        assert config_after_verb(words) == words
    assert config_after_verb(["--config", "a.toml", *submit]) == ["submit", "--config", "a.toml", *submit[1:]]
    config = tmp_path / "other.toml"
    config.write_text("[addresses]\nmonitor = 'nowhere'\n")
    argv = [sys.executable, "-m", "malletrain.cli.main", "--config", str(config), "jobs"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "addresses.monitor" in done.stderr


def test_variables_that_are_no_settings() -> None:
    known = ["MALLETRAIN_STATE_DIR", "MALLETRAIN_JOB_MANAGER__MAX_PARALLEL", "MALLETRAIN_TOKEN_FILE", JOB_ID, "PATH"]
    assert unknown_variables(dict.fromkeys(known, "")) == []
    wrong = ["MALLETRAIN_JOBMANAGER__MAX_PARALLEL", "MALLETRAIN_STATEDIR"]
    assert unknown_variables(dict.fromkeys([*known, *wrong], "")) == wrong
