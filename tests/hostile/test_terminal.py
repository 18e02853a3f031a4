"""What jobs and other users have written reaches a terminal as text: no verb passes on what commands one."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.progress import Progress
from rich.table import Table
from typer.testing import CliRunner

from malletrain.cli import main
from malletrain.cli.shared.output import print_table
from malletrain.cli.shared.terminal import EscapingStream, guarded_output, open_console, visible
from malletrain.runtime.errors import MalleTrainError
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until
from tests.system.deployment import Deployment, deployed

ATTACKS = {
    "clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "title": "\x1b]0;root@head\x07",
    "cursor": "\x1b[1A\x1b[2K all is well",
    "one byte": "\x9b2J\x9d0;x\x9c",
    "colour": "\x1b[8mhidden\x1b[0m",
    "bell and backspace": "\x07\x08\x08",
    "begin of line": "evil\rgood",
    "direction": "\u202egnp.exe\u2066",
    "device": "\x1bP+q544e\x1b\\",
    "delete": "\x7f",
}
EVERYTHING = "a\tb " + "".join(ATTACKS.values())
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_DRAWING = re.compile("\x1b\\[[0-9;?]*[A-Za-z]|\r")
"""What the command itself draws with: colours, and moves of the cursor."""


def say_everything() -> None:
    """A verb that prints what it was told, in each way in which verbs print."""
    typer.echo(EVERYTHING)
    typer.echo(EVERYTHING, err=True)
    print(EVERYTHING)
    sys.stdout.write(EVERYTHING + "\n")
    print_table(("what", EVERYTHING), list(ATTACKS.items()), EVERYTHING)
    open_console(soft_wrap=True).print(EVERYTHING, markup=False)
    raise MalleTrainError(EVERYTHING)


def commands_of(verb: str) -> list[list[str]]:
    """The verb; of a group, each of its own."""
    return [[verb, "inner"], [verb, "deeper", "inner"]] if verb in main.GROUPS else [[verb]]


@pytest.mark.parametrize("verb", [*main.VERBS, *main.GROUPS])
def test_no_verb_prints_what_commands_a_terminal(
    verb: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    group, deeper = typer.Typer(), typer.Typer()
    for app in (group, deeper):
        app.command("inner")(say_everything)
        app.callback()(lambda: None)
    group.add_typer(deeper, name="deeper")
    module = SimpleNamespace(**{verb: say_everything, f"{verb}_app": group})
    monkeypatch.setattr(main, "import_module", lambda _: module)
    for words in commands_of(verb):
        done = CliRunner().invoke(main.application(verb), words)
        assert isinstance(done.exception, MalleTrainError), done.output
        for text in (done.stdout, done.stderr):
            assert "\\x1b]52;c;" in text
            assert not _COMMANDS.search(text), text
        with pytest.raises(SystemExit):
            main.end_with(done.exception, 1)
    assert not _COMMANDS.search(capfd.readouterr().err)


def test_only_one_module_of_the_command_knows_of_consoles_and_streams() -> None:
    folder = Path(main.__file__).parent
    direct = re.compile(r"(?<![A-Za-z_])Console\(|sys\.(stdout|stderr)\.(write|buffer)|os\.write\(1|secho\(")
    found = {path.name for path in folder.rglob("*.py") if direct.search(path.read_text())}
    assert found <= {"terminal.py"}


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS)
def test_each_attack_is_shown_as_text(text: str) -> None:
    assert not _COMMANDS.search(visible(text))
    assert visible("line\n\tplain äöü 漢字") == "line\n\tplain äöü 漢字"
    assert visible(visible(text)) == visible(text)


def test_tables_and_bars_draw_and_show_what_they_are_given() -> None:
    stream = io.StringIO()
    with redirect_stdout(stream):
        console = open_console(force_terminal=True, width=400)
        table = Table("name", EVERYTHING)
        table.add_row("[red]x[/red]", EVERYTHING)
        console.print(table)
        with Progress(console=console) as progress:
            progress.add_task(EVERYTHING, total=1)
    text = stream.getvalue()
    assert _DRAWING.search(text), "it draws"
    assert not _COMMANDS.search(_DRAWING.sub("", text))
    assert "\x1b[8m" not in text
    assert "\x1b[1A\x1b[2K all" not in text


def test_a_stream_is_as_before_afterwards() -> None:
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", plain)
        with guarded_output():
            assert isinstance(sys.stdout, EscapingStream)
            print("\x1b\ud800ä")
        assert sys.stdout is plain
        assert plain.buffer.getvalue().decode() == "\\x1b\\ud800ä\n"  # type: ignore[attr-defined]


_PRINTED = "\n".join(ATTACKS.values()).encode() + b"\n" + bytes(range(1, 256)) + b" end of log"
PRINTS = f"""
import sys
sys.stdout.buffer.write({_PRINTED!r})
sys.stdout.flush()
sys.exit(3)
"""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("up")
    toml = '[access]\nmunge = "off"\n[scavenger]\nsource = "static"\nnodes = ["n1"]\ndebounce_seconds = 0\n'
    with deployed(folder, toml) as deployment:
        (folder / "prints.py").write_text(PRINTS)
        words = ("submit", "--backend", "command", "--min", "1", "--max", "1")
        done = deployment.command(*words, "--", sys.executable, str(folder / "prints.py"))
        assert done.returncode == 0, done.stderr
        wait_until(lambda: deployment.state("j000001") == "FAILED", 90, "the job's end")
        yield deployment


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_jobs_output_commands_no_real_terminal(system: Deployment) -> None:
    assert "\\x1b]52;c;" in system.command("logs", "j000001").stdout
    for verb in (("logs", "j000001"), ("logs", "j000001", "--follow"), ("job", "j000001"), ("jobs",)):
        terminal = Terminal([sys.executable, "-m", "malletrain.cli.main", *verb], system.folder, columns=200)
        wait_until(lambda seen=terminal: seen.ended() is not None, 60, "its end")  # type: ignore[misc]
        terminal.text()
        drawn = terminal.raw.decode().replace("\r\n", "\n")
        assert not _COMMANDS.search(re.sub("\x1b\\[[0-9;]*m", "", drawn)), drawn
        assert "\x1b[8m" not in drawn
