from __future__ import annotations

import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from malletrain.caller.job_request import default_name
from malletrain.cli.main import application
from malletrain.cli.operate.service_logs import last_line
from malletrain.cli.operate.state_folder import prepare_state_folder
from malletrain.cli.shared.settings import load
from malletrain.cli.shared.verbs import Verb, VerbGroup
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


def test_settings_are_read_without_what_makes_plans() -> None:
    plans = {"numpy", "sqlalchemy", "malletrain.allocator.problem.planner", "malletrain.allocator.problem.objective"}
    script = f"import sys; import malletrain.cli.shared.settings; print(*({plans} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_a_verb_alone_is_the_verb_among_all() -> None:
    every = {info.name for info in application().registered_commands}
    assert {"up", "submit", "resume", "demo"} <= every
    for name in every:
        assert [info.name for info in application(name).registered_commands] == [name]
    assert [info.name for info in application("trace").registered_groups] == ["trace"]


_NOT_FOR_LISTING_JOBS = (
    *("pydantic", "annotated_types", "rich", "csv", "cryptography", "jwt", "numpy", "scipy"),
    *("google.protobuf.json_format", "json", "tomllib", "secrets", "hmac", "malletrain.v1.access_pb2_grpc"),
    *("sqlalchemy", "structlog", "alembic", "prometheus_client", "opentelemetry", "torch", "bokeh"),
    *("malletrain.simulator", "malletrain.allocator", "malletrain.dashboard", "malletrain.runtime.config"),
    *("malletrain.observer.facts", "malletrain.observer.history", "malletrain.model.job_terms"),
    *("malletrain.model.node_needs", "malletrain.model.scaling", "malletrain.v1.allocator_pb2_grpc"),
)


def test_listing_jobs_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    # The whole command, parsing included, up to the first call: typer imports Pydantic when it validates an option.
    script = (
        "import sys; sys.argv[1:] = ['jobs']; from malletrain.cli.main import run\n"
        "try: run()\n"
        "except SystemExit as end: print(end.code, *sys.modules)"
    )
    environment = {"PATH": "/usr/bin:/bin", "MALLETRAIN_STATE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path, env=environment
    )
    code, *modules = done.stdout.split()
    assert code == "1"
    assert "no services have been started here yet" in done.stderr
    assert "malletrain.cli.jobs.jobs" in modules
    found = [name for name in modules for part in _NOT_FOR_LISTING_JOBS if name == part or name.startswith(f"{part}.")]
    assert found == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["--limit", "-1"], "'--limit'"), (["-o", "tabel"], "'-o'"), (["--limit", "many"], "integer")],
)
def test_options_that_were_given_are_validated(words: list[str], expected: str) -> None:
    done = CliRunner().invoke(application("jobs"), ["jobs", *words], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert expected in done.output


class Colour(Enum):
    RED = "red"


def test_defaults_are_what_was_declared() -> None:
    found: list[object] = []
    app = typer.Typer(cls=VerbGroup)

    @app.command(cls=Verb)
    def show(
        colour: Colour = Colour.RED,
        names: Annotated[list[str] | None, typer.Option()] = None,
        path: Path = Path("file"),
        text: str = "",
        word: str = "word",
        count: int = 3,
        many: float = 0.5,
        seen: Annotated[bool, typer.Option("--seen", callback=lambda value: not value)] = False,
    ) -> None:
        found.extend([colour, names, path, text, word, count, many, seen])

    assert CliRunner().invoke(app, []).exit_code == 0
    assert found == [Colour.RED, None, Path("file"), "", "word", 3, 0.5, True]
