"""Groups of options in help texts."""

from __future__ import annotations

import inspect
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from malletrain.cli.main import application
from malletrain.cli.shared.help_panels import help_panels
from malletrain.cli.simulate.replay import replay

SHARED = typer.Option(help="Shared.")


def test_groups_belong_to_one_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")

    @help_panels({"Grouped": ("a",)})
    def first(a: Annotated[int, SHARED] = 1, b: Annotated[str, typer.Option(help="Alone.")] = "") -> None:
        typer.echo(f"{a}{b}")

    def second(a: Annotated[int, SHARED] = 1) -> None:
        typer.echo(str(a))

    app = typer.Typer()
    app.command("first")(first)
    app.command("second")(second)
    assert "─ Grouped ─" in CliRunner().invoke(app, ["first", "--help"]).stdout
    assert "─ Grouped ─" not in CliRunner().invoke(app, ["second", "--help"]).stdout
    assert CliRunner().invoke(app, ["first", "--a", "3", "--b", "x"]).stdout == "3x\n"
    with pytest.raises(KeyError):
        help_panels({"Grouped": ("c",)})(second)


@pytest.mark.parametrize("verb", ["replay", "submit"])
@pytest.mark.parametrize("columns", ["80", "120"])
def test_long_helps_have_groups_and_name_every_option(verb: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = CliRunner().invoke(application(verb), [verb, "--help"]).stdout
    assert shown.count("╭─") >= 5
    if verb == "replay":
        options = inspect.signature(replay).parameters.keys() - {"as_json"}
        assert all(f"--{name.replace('_', '-')}" in shown for name in options)


def test_names_in_brackets_are_no_markup() -> None:
    assert "malletrain[dashboard]" in CliRunner().invoke(application("dashboard"), ["dashboard", "--help"]).stdout
