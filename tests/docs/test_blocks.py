"""How pages are read: blocks, directives, expected output."""

from __future__ import annotations

import pytest

from tests.docs.blocks import Command, ConsoleBlock, FileBlock, WrongPageError, matches, read_blocks


def test_commands_with_and_without_output_are_read_in_order() -> None:
    page = "Text.\n\n```console\n$ one\n$ two \\\n    more\nout 1\nout 2\n```\n"
    assert read_blocks(page) == [
        ConsoleBlock(3, (Command(4, "one", ()), Command(5, "two \\\n    more", ("out 1", "out 2"))))
    ]


def test_a_directive_holds_for_the_block_after_it() -> None:
    page = (
        "<!-- docs-test: skip: needs a Slurm cluster -->\n```console\n$ sinfo\n```\n"
        "<!-- docs-test: file: a.py -->\n```python\nx = 1\n```\n```toml\ny = 2\n```\n"
    )
    assert read_blocks(page) == [
        ConsoleBlock(2, (Command(3, "sinfo", ()),), "needs a Slurm cluster"),
        FileBlock("a.py", "x = 1\n"),
    ]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("```sh\nmake\n```\n", "```console"),
        ("```\n$ make\n```\n", "```console"),
        ("```console\nmake\n```\n", "after `\\$ `"),
        ("```console\n```\n", "without a command"),
        ("<!-- docs-test: skip: -->\n```console\n$ make\n```\n", "misspelt"),
        ("<!-- docs-test: skip: why -->\n\nText.\n\n```console\n$ make\n```\n", "directly before"),
        ("<!-- docs-test: later: why -->\n```console\n$ make\n```\n", "later"),
        ("<!-- docs-test: skip: why -->\n```python\nx\n```\n", "skip"),
    ],
)
def test_a_block_that_is_neither_run_nor_skipped_is_refused(page: str, message: str) -> None:
    with pytest.raises(WrongPageError, match=message):
        read_blocks(page)


@pytest.mark.parametrize(
    ("expected", "output", "fits"),
    [
        (["a", "b"], "a\nb\n", True),
        (["a"], "a\nb\n", False),
        (["a", "..."], "a\n", True),
        (["...", "b"], "a\na\nb\n", True),
        (["job ... ended"], "job j000001 has ended\n", True),
        (["job ... ended"], "job j000001\nended\n", False),
        (["│ a │ 1 │"], "│ a     │ 1   │\n", True),
        (["a.c"], "abc\n", False),
    ],
)
def test_output_is_compared_with_wildcards(expected: list[str], output: str, fits: bool) -> None:
    assert matches(expected, output) is fits
