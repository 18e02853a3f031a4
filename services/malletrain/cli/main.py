"""The `malletrain` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from malletrain.cli.shared.stubs import ServiceCallError
from malletrain.cli.shared.terminal import guard_function, guard_verbs, visible
from malletrain.cli.shared.verbs import Verb, VerbGroup
from malletrain.common.version import VERSION
from malletrain.runtime.errors import InvalidInputError, MalleTrainError


def complete_at_first_tab(home: Path, name: str) -> None:
    """Have zsh complete at the first Tab of a shell, too: the file that typer writes only defines how.

    Args:
        home: Home folder of the user; nothing is done where nothing was installed for zsh.
        name: Name of the command.
    """
    file = home / ".zfunc" / f"_{name}"
    call = f'_{name}_completion "$@"\n'
    if not file.is_file():
        return
    text = file.read_text(encoding="utf-8")
    if not text.endswith(call):
        file.write_text(f"{text}\n{call}", encoding="utf-8")


_NAME = "malletrain"
VERBS = {
    "up": "malletrain.cli.operate.up",
    "serve": "malletrain.cli.operate.serve",
    "health": "malletrain.cli.health",
    "check": "malletrain.cli.check.command",
    "submit": "malletrain.cli.jobs.submit",
    "search": "malletrain.cli.jobs.search",
    "jobs": "malletrain.cli.jobs.jobs",
    "job": "malletrain.cli.jobs.job",
    "logs": "malletrain.cli.jobs.logs",
    "metrics": "malletrain.cli.jobs.metrics",
    "cancel": "malletrain.cli.jobs.changing",
    "set": "malletrain.cli.jobs.changing",
    "usage": "malletrain.cli.jobs.usage",
    "nodes": "malletrain.cli.operate.nodes",
    "top": "malletrain.cli.top.command",
    "drain": "malletrain.cli.operate.nodes",
    "resume": "malletrain.cli.operate.nodes",
    "plan": "malletrain.cli.operate.plan",
    "explain": "malletrain.cli.jobs.explain",
    "profile": "malletrain.cli.jobs.curve",
    "curve": "malletrain.cli.jobs.curve",
    "solve": "malletrain.cli.simulate.solve",
    "replay": "malletrain.cli.simulate.replay",
    "tune": "malletrain.cli.operate.tune",
    "reproduce": "malletrain.cli.reproduce.command",
    "batch": "malletrain.cli.simulate.batch",
    "advise": "malletrain.cli.simulate.advise",
    "dashboard": "malletrain.cli.operate.dashboard",
    "doctor": "malletrain.cli.operate.doctor",
    "shadow": "malletrain.cli.simulate.shadow",
    "token": "malletrain.cli.operate.token",
    "backup": "malletrain.cli.operate.backup",
    "restore": "malletrain.cli.operate.backup",
    "demo": "malletrain.cli.demo.command",
}
"""In which module the function of each verb is that has the verb's name."""
_CALLING = frozenset(
    (
        "nodes",
        "top",
        "drain",
        "resume",
        "plan",
        "token",
        *(name for name, module in VERBS.items() if ".jobs." in module),
    )
)
"""Verbs that call services, and so have the option --config."""
GROUPS = {
    "trace": "malletrain.cli.trace",
    "fleet": "malletrain.cli.fleet",
    "pki": "malletrain.cli.operate.pki",
    "install": "malletrain.cli.operate.install",
    "debug": "malletrain.cli.operate.debug",
}
"""In which module the application `NAME_app` of each group of verbs is."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"malletrain {VERSION}")
        raise typer.Exit


def application(verb: str | None = None, *, only_names: bool = False) -> typer.Typer:
    """The command with all verbs, or with one of them alone, which starts sooner: only its module is imported.

    Args:
        verb: The verb; None: all.
        only_names: Whether nothing but the verbs' names is asked for: then no module is imported at all.
    """
    app = typer.Typer(
        name=_NAME,
        cls=VerbGroup,
        help="Trains neural networks on the nodes that a supercomputer's batch scheduler cannot fill.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    if only_names:
        for name in (*VERBS, *GROUPS):
            app.command(name)(_nothing)
        return app
    for name, module in VERBS.items():
        if verb in (None, name):
            function = getattr(import_module(module), name)
            app.command(name, cls=Verb)(guard_function(_add_config(function) if name in _CALLING else function))
    for name, module in GROUPS.items():
        if verb in (None, name):
            app.add_typer(guard_verbs(getattr(import_module(module), f"{name}_app")), name=name)
    return app


def _choose_protobuf_json() -> None:
    from malletrain.cli.shared.output import JsonForm, choose_json_form  # verbs without JSON start sooner

    choose_json_form(JsonForm.PROTO)


def _nothing() -> None:  # without a docstring: shells would show it beside every verb
    return


def _add_config(function: Callable[..., None]) -> Callable[..., None]:
    from malletrain.cli.shared.configured import with_config  # it imports all settings

    return with_config(function)


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=_print_version)
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="The same as --config after the verb, for verbs that have it.")
    ] = None,
) -> None:
    del version, config  # see `config_after_verb`


def config_after_verb(words: Sequence[str]) -> list[str]:
    """The words of a command with `--config FILE`, where it comes first, moved behind the verb. Pure.

    Each verb has the option for itself, since some hand the file on; in this way it is read at one place only.
    """
    count = 2 if words[:1] == ["--config"] else 1 if words[:1] and words[0].startswith("--config=") else 0
    option, others = list(words[:count]), list(words[count:])
    if not option or not others or others[0].startswith("-"):
        return list(words)
    verb = 2 if others[0] in GROUPS and len(others) > 1 and not others[1].startswith("-") else 1
    return [*others[:verb], *option, *others[verb:]]


def json_form_chosen(words: Sequence[str]) -> tuple[list[str], bool]:
    """The words of a command with `--json` in place of `--json=proto`, and whether that was there. Pure.

    An option is a flag or takes a value; this one is a flag that for one version may be told the former form.
    """
    end = words.index("--") if "--" in words else len(words)
    options, others = words[:end], words[end:]
    return ["--json" if word == "--json=proto" else word for word in options] + list(others), "--json=proto" in options


def _application(environment: Mapping[str, str]) -> typer.Typer:
    """The command with as many verbs as this run of it needs."""
    completing = f"_{_NAME.upper()}_COMPLETE" in environment
    # bash has the words in one variable, zsh in the other; both have the command itself first.
    line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split()[1:] if completing else sys.argv[1:]
    first = words[0] if words else ""
    known = first in VERBS or first in GROUPS
    if completing:
        complete = len(words) > 1 or line.endswith(" ")  # else this verb may be the begin of another
        return application(first) if known and complete else application(only_names=True)
    if first.startswith(("--install-completion", "--show-completion")):
        return application(only_names=True)
    return application(first if known or first == "--version" else None)


def run() -> None:
    """Run the command. Exit codes: 0 done, 1 failed, 2 wrong use."""
    sys.argv[1:], in_protobuf = json_form_chosen(config_after_verb(sys.argv[1:]))
    try:
        if in_protobuf:
            _choose_protobuf_json()
        _application(os.environ)(prog_name=_NAME)
    except InvalidInputError as error:
        end_with(error, 2)
    except ServiceCallError as error:
        end_with(error, 2 if error.wrong_use else 1)
    except MalleTrainError as error:
        end_with(error, 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except SystemExit as end:
        if sys.argv[1:2] == ["--install-completion"] and not end.code:
            complete_at_first_tab(Path.home(), _NAME)
        raise
    except BrokenPipeError:
        # The reader of the output has ended, e.g. `malletrain jobs | head`.
        sys.stderr.close()
        sys.exit(1)


def end_with(error: MalleTrainError, code: int) -> None:
    """End the command: say what is wrong, with nothing in it that a terminal would act on.

    Raises:
        SystemExit: always, with the code.
    """
    typer.echo(f"error: {visible(str(error))}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    run()
