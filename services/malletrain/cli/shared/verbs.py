"""Verbs and groups of verbs that start sooner than typer's own, and say of wrong words which are meant."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from typer.core import TyperCommand, TyperGroup


class Verb(TyperCommand):
    """A verb whose options are validated only where they were given.

    Typer makes a validator for each option before it looks at its value, and imports Pydantic for the first one. That
    was a third of the time that `malletrain jobs` took, and most defaults need none: type checks know their types.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """The options and arguments of the verb, `--help` among them."""
        return _sparing_defaults(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take in its words; of an option that there is not, the error says what is probably meant."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # of typer's own parser, whose types it does not export
            option = getattr(error, "option_name", None)
            if isinstance(option, str) and option.startswith("-") and hasattr(error, "possibilities"):
                self._say_more(error, ctx, option, words)
            raise

    def _say_more(self, error: Any, ctx: Any, option: str, words: list[str]) -> None:
        ctx.ignore_unknown_options = True
        values, others, _ = self.make_parser(ctx).parse_args(args=list(words))
        if advice := of_option(str(ctx.info_name), option, words, values.get("command") or others):
            error.message, error.possibilities = f"{error.message}; {advice}", None


class VerbGroup(TyperGroup):
    """A group of verbs, or the command itself, with the same help as a verb."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that is called; of one that there is not, the error says which is probably meant."""
        word = args[0] if args else ""
        outermost = ctx.parent is None and not ctx.resilient_parsing  # else a shell completes what is not written yet
        if outermost and word and not word.startswith("-") and self.get_command(ctx, word) is None:
            ctx.fail(f"No such command {word!r}: {of_verb(word, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """The options and arguments of the verb, `--help` among them."""
        return _sparing_defaults(super().get_params(ctx))


def _sparing_defaults(options: list[Any]) -> list[Any]:
    for option in options:
        if not option.required and "process_value" not in vars(option):
            option.process_value = _sparing(option, option.process_value)
    return options


def _sparing(option: Any, process: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    several = option.multiple or option.nargs == -1

    def process_value(context: Any, value: Any) -> Any:
        if value is not None and not (value is option.default and _is_of_its_type(value)):
            return process(context, value)
        passed = () if value is None and several else value
        return passed if option.callback is None else option.callback(context, option, passed)

    return process_value


def _is_of_its_type(default: object) -> bool:
    """Whether typer would make nothing else of a default. A text may stand for a path, or an enumeration."""
    return default == "" or isinstance(default, bool | int | float | Enum)


_RUNNING = ("submit", "check")
"""Verbs that are given a command."""
_FOR_JOBS = {"u": "--owner or --mine", "user": "--owner or --mine", "me": "--mine", "t": "--state", "states": "--state"}


def of_option(verb: str, option: str, words: Sequence[str], others: Sequence[str]) -> str:
    """What is said of an option that a verb does not have; empty: nothing more than that.

    Args:
        option: The option, with its dashes.
        words: All words after the verb.
        others: What is left of them without the verb's own options: of the script, and this option.
    """
    from malletrain.caller.other_names import own_options, why_absent  # right words need none of it

    name = option.lstrip("-")
    if verb in _RUNNING:
        place = next((place for place, word in enumerate(others) if word.startswith(option)), 0)
        if place and "--" not in words:
            if others[0].endswith(".toml"):
                return "options of the script stand in the job file's command"
            start = list(words).index(others[0])
            line = shlex.join([*words[:start], "--", *words[start:]])
            return f"options of the script stand after `--`: malletrain {verb} {line}"
        if absent := why_absent(name):
            return absent
        meant = " and ".join(f"--{own}" for own in own_options(name))
    else:
        meant = _FOR_JOBS.get(name, "") if verb == "jobs" else ""
    return meant and f"here it is {meant}"


def of_verb(word: str, verbs: Sequence[str]) -> str:
    """What is said of a verb that there is not."""
    from malletrain.caller.other_names import own_verb, why_no_verb

    if absent := why_no_verb(word):
        return absent
    meant = own_verb(word, verbs)
    return f"do you mean `malletrain {meant}`?" if meant else "`malletrain --help` lists all"
