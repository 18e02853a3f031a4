from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from malletrain.cli.operate.tune import as_toml, change_settings, changed_text
from malletrain.runtime.errors import InvalidInputError

TEXT = """# mine
state_dir = "/var/lib/malletrain"

[allocator]  # plans
plans_kept = 5
forward_seconds = 120.0
[scavenger]
source = "static"
forward_seconds_of_mine = 1
"""
VALUES = {
    ("allocator", "forward_seconds"): 240.0,
    ("allocator", "forward_policy"): "expected",
    ("job_manager", "max_parallel"): 20,
}


def test_only_these_values_change_and_the_rest_stays_as_it_is_written() -> None:
    found = changed_text(TEXT, VALUES)
    expected = tomllib.loads(TEXT)
    expected["allocator"] |= {"forward_seconds": 240.0, "forward_policy": "expected"}
    expected["job_manager"] = {"max_parallel": 20}
    assert tomllib.loads(found) == expected
    kept = [line for line in TEXT.splitlines() if line != "forward_seconds = 120.0"]
    lines = iter(found.splitlines())
    assert all(line in lines for line in kept), "every other line, in its order"
    assert tomllib.loads(changed_text("", VALUES)) == tomllib.loads(as_toml(VALUES))
    assert as_toml(VALUES).splitlines()[-2:] == ["[job_manager]", "max_parallel = 20"]


@pytest.mark.parametrize("text", ["allocator = {forward_seconds = 3.0}", "allocator.forward_seconds = 3.0"])
def test_a_file_that_is_written_otherwise_is_left_alone(tmp_path: Path, text: str) -> None:
    config = tmp_path / "malletrain.toml"
    config.write_text(text)
    with pytest.raises(InvalidInputError, match="--apply: expected a TOML file that can be changed"):
        change_settings(config, VALUES)
    assert config.read_text() == text


def test_a_file_is_changed_with_its_mode(tmp_path: Path) -> None:
    config = tmp_path / "malletrain.toml"
    config.write_text(TEXT)
    config.chmod(0o640)
    change_settings(config, VALUES)
    assert tomllib.loads(config.read_text())["job_manager"] == {"max_parallel": 20}
    assert config.stat().st_mode & 0o777 == 0o640


def test_a_variable_that_overrides_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "malletrain.toml"
    config.write_text(TEXT)
    monkeypatch.setenv("MALLETRAIN_ALLOCATOR__FORWARD_SECONDS", "30")
    with pytest.raises(InvalidInputError, match="MALLETRAIN_ALLOCATOR__FORWARD_SECONDS overrides it"):
        change_settings(config, VALUES)
    assert config.read_text() == TEXT
