from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from malletrain.caller.job_request import default_name
from malletrain.cli.main import application
from malletrain.cli.operate.up import last_line, prepare_state_folder
from malletrain.cli.shared.settings import load
from malletrain.common.version import VERSION
from malletrain.runtime.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('[scavanger]\nsource = "static"\n', "scavanger"),
        ('statedir = "state"\n', "statedir"),
        ('[scavenger]\nsource = "static"\nnodes = "n01,n02"\n', "scavenger.nodes: expected a list"),
    ],
)
def test_a_typo_in_the_settings_is_refused_by_name(tmp_path: Path, text: str, field: str) -> None:
    config = tmp_path / "malletrain.toml"
    config.write_text(text)
    with pytest.raises(InvalidInputError, match=field):
        load(config)


def test_a_state_folder_that_cannot_be_made_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MALLETRAIN_STATE_DIR", str(tmp_path / "file/state"))
    with pytest.raises(InvalidInputError, match="state_dir: expected a folder that is there or can be made"):
        prepare_state_folder(load())


def test_a_service_that_left_no_word_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "monitor.log"
    assert last_line(log) == f"nothing in {log}; is there room on its disk?"
    log.write_text("one\n\ntwo\n\n")
    assert last_line(log) == "two"


def test_the_version() -> None:
    said = CliRunner().invoke(application(), ["--version"])
    assert (said.exit_code, said.stdout.strip()) == (0, f"malletrain {VERSION}")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-u", "train.py", "--epochs", "3"], "train"),
        (["/opt/env/bin/python3", "-m", "package"], "package"),
        (["sleep", "30"], "sleep"),
        (["./run.sh", "fast"], "run"),
    ],
)
def test_jobs_are_named_after_their_script_or_program(command: list[str], name: str) -> None:
    assert default_name(command) == name


def test_no_verb_and_no_service_pays_for_what_few_of_them_use() -> None:
    heavy = {"numba", "matplotlib", "torch", "pyarrow"}
    script = (
        f"import sys; from malletrain.cli.main import application; application(); print(*({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_a_verb_alone_is_the_verb_among_all() -> None:
    every = {info.name for info in application().registered_commands}
    assert {"up", "submit", "resume", "demo"} <= every
    for name in every:
        assert [info.name for info in application(name).registered_commands] == [name]
    assert [info.name for info in application("trace").registered_groups] == ["trace"]


def test_listing_jobs_imports_no_simulator() -> None:
    script = "import sys; from malletrain.cli.main import application; application('jobs'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "malletrain.cli.jobs.jobs" in done.stdout.split()
    assert not [name for name in done.stdout.split() if name.startswith("malletrain.simulator")]
