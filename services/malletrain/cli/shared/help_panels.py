"""Options of a verb in groups, as `--help` shows them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from typer.models import OptionInfo

_Verb = TypeVar("_Verb", bound=Callable[..., None])


def help_panels(panels: Mapping[str, Sequence[str]]) -> Callable[[_Verb], _Verb]:
    """Put the options of a verb into groups; those that are in none stay under "Options".

    Args:
        panels: Names of the verb's parameters by the title of their group.

    Raises:
        KeyError: the verb has no such parameter.
    """

    def grouped(verb: _Verb) -> _Verb:
        hints = get_type_hints(verb, include_extras=True)
        for title, names in panels.items():
            for name in names:
                kind, option, *others = get_args(hints[name])
                if not isinstance(option, OptionInfo):
                    raise KeyError(name)
                own = copy.copy(option)  # verbs share some
                own.rich_help_panel = title
                hints[name] = Annotated[kind, own, *others]
        verb.__annotations__ = hints
        return verb

    return grouped


def option_names(verb: Callable[..., Any]) -> set[str]:
    """The parameters of a verb that are options."""
    hints = get_type_hints(verb, include_extras=True)
    return {name for name, hint in hints.items() if any(isinstance(part, OptionInfo) for part in get_args(hint))}
