"""Progress bars of verbs that compute for long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from malletrain.cli.shared.terminal import open_console

_STEPS = 200
"""How often a bar moves at most."""


@contextmanager
def progress_bar(name: str, total: float, *, counts: bool = False) -> Iterator[Callable[[float], None]]:
    """A bar on standard error, if that is a terminal; nothing elsewhere. It is gone at the end.

    Args:
        name: What is done, for people.
        total: What there is to do, in any unit.
        counts: Whether the numbers themselves mean something to people; else a share is shown.

    Yields:
        Called with what is done by now.
    """
    console = open_console(stderr=True)
    if not console.is_terminal or total <= 0:
        yield lambda _: None
        return
    figure: ProgressColumn = MofNCompleteColumn() if counts else TextColumn("{task.percentage:.0f} %")
    columns = (TextColumn(name), BarColumn(), figure, TimeRemainingColumn())
    # What is printed meanwhile goes above the bar; where it goes to a file, it has to go on doing so.
    both = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=both) as progress:
        task = progress.add_task(name, total=total)
        drawn = 0.0

        def show(done: float) -> None:
            nonlocal drawn
            if done - drawn >= total / _STEPS or done >= total:
                drawn = done
                progress.update(task, completed=done)

        yield show
