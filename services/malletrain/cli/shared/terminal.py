"""The one way of the command to a terminal: what would command it is shown as text.

Names, reasons, metrics and lines of logs come from jobs and other users. A terminal acts upon control characters in
them: it fills the clipboard, changes its title, or moves the cursor and so shows what nobody has said. Each verb writes
through `guarded_output`, and what draws, tables and progress bars, through `TerminalConsole`.
"""

from __future__ import annotations

import functools
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import Console

_Result = TypeVar("_Result")
_COMMANDING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # all but tab and the end of a line
    "\u2028\u2029\u202a-\u202e\u2066-\u2069"  # what ends lines, and what turns the direction of writing
    "\ud800-\udfff]"  # which can't be encoded
)


_STYLES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "cyan": 36}
"""What a terminal is sent for a style."""


def visible(text: str) -> str:
    r"""A text with `\x1b` and the like in place of what a terminal would act upon. Line ends and tabs stay. Pure."""
    return _COMMANDING.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class EscapingStream(io.TextIOWrapper):
    """A text stream of which nothing commands a terminal.

    Attributes:
        plain: The stream in whose place it is.
    """

    def __init__(self, plain: io.TextIOWrapper) -> None:
        super().__init__(
            plain.buffer,
            encoding="utf-8" if plain.encoding.lower() in ("ascii", "us-ascii") else plain.encoding,
            errors=plain.errors,
            line_buffering=plain.line_buffering,
            write_through=True,
        )
        self.plain = plain

    def write(self, text: str) -> int:
        """Write a text, escaped."""
        super().write(visible(text))
        return len(text)

    def write_as_it_is(self, text: str) -> None:
        """Write what is made here and has no text of others in it that was not escaped."""
        super().write(text)


@contextmanager
def guarded_output() -> Iterator[None]:
    """Have standard output and standard error escape what would command a terminal, while the context lasts."""
    with ExitStack() as stack:
        for name in ("stdout", "stderr"):
            plain = getattr(sys, name)
            if not isinstance(plain, io.TextIOWrapper) or isinstance(plain, EscapingStream):
                continue
            plain.flush()
            stream = EscapingStream(plain)
            stack.callback(stream.detach)  # or the end of this stream would close the other one
            stack.callback(setattr, sys, name, plain)
            setattr(sys, name, stream)
        yield


def guard_function(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """A function within `guarded_output`."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> _Result:
        with guarded_output():
            return function(*arguments, **options)

    run.is_guarded = True  # type: ignore[attr-defined]
    return run


def guard_verbs(app: typer.Typer) -> typer.Typer:
    """Guard all verbs of a group, and of the groups in it."""
    for command in app.registered_commands:
        if command.callback is not None and not getattr(command.callback, "is_guarded", False):
            command.callback = guard_function(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            guard_verbs(group.typer_instance)
    return app


def has_terminal() -> bool:
    """Whether standard output is a terminal, or something that passes on what one shows (TTY_COMPATIBLE=1)."""
    compatible = os.environ.get("TTY_COMPATIBLE", "")
    return compatible == "1" if compatible in ("0", "1") else sys.stdout.isatty()


def terminal_width() -> int:
    """Width of the terminal in cells."""
    return shutil.get_terminal_size().columns


def write_styled(parts: Iterable[tuple[str, str]]) -> None:
    """Write a line on standard output: texts, each with its style, which only a terminal gets.

    Args:
        parts: Texts, and the name of the style of each; empty: none.
    """
    escaped = [(visible(text), style) for text, style in parts]
    if not has_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        line = "".join(text for text, _ in escaped)
    else:
        line = "".join(f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text else text for text, style in escaped)
    _send(f"{line.rstrip()}\n")


def clear_screen() -> None:
    """Begin a new screen, where standard output is a terminal."""
    if has_terminal():
        _send("\x1b[H\x1b[2J")


def _send(text: str) -> None:
    if isinstance(sys.stdout, EscapingStream):
        sys.stdout.write_as_it_is(text)
    else:
        sys.stdout.write(text)


@contextmanager
def show_interrupt_as_end() -> Iterator[None]:
    """Have Ctrl-C end what goes on for ever, which is no failure."""
    with suppress(KeyboardInterrupt):
        yield


def open_console(*, stderr: bool = False, **options: Any) -> Console:
    """A console of rich for standard output, or standard error, that draws, and shows all other control characters.

    Args:
        stderr: Whether it is for standard error.
        **options: Options of `rich.console.Console`.
    """
    from rich.console import Console, ConsoleOptions, RenderableType  # some verbs draw nothing, and start sooner
    from rich.segment import Segment

    class TerminalConsole(Console):
        """Escapes text wherever it comes from; what moves the cursor is rich's own, and no text to it."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """Segments of something that is to be drawn."""
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(visible(segment.text), segment.style)

    stream: TextIO = sys.stderr if stderr else sys.stdout
    return TerminalConsole(file=stream.plain if isinstance(stream, EscapingStream) else stream, **options)
