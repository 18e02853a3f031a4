"""What the pages for operators say of containers, command by command: day 2, and grpcurl from the same machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from malletrain.runtime.settings_file import SERVICES
from tests.containers.composition import ROOT, Composition, missing_images
from tests.docs.blocks import Command, ConsoleBlock, matches, read_blocks
from tests.docs.test_grpcurl import needs_grpcurl
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

PROJECT = "malletrain-test-day2"
IMAGES = {f"MALLETRAIN_{name.upper()}_IMAGE": f"localhost/malletrain-{name}:day2" for name in ("head", "trainer")}
"""Images of the test's own, which an upgrade replaces."""
SHOWN = {"scavenger": "7701", "allocator": "7702", "job_manager": "7703", "monitor": "7704", "profiler": "7705"}
"""Ports of the page, which others may use on this machine."""
_SECONDS = 150.0
_LINKED = ("docker-compose.yml", "deploy", "examples")


def section(page: str, title: str) -> list[list[Command]]:
    """The console blocks of a section, but for those that a test of containers can't run either."""
    text = (ROOT / "docs/operators" / page).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n## {title}\n")
    assert found, f"{page} has no section {title}"
    blocks = (block for block in read_blocks(rest.partition("\n## ")[0]) if isinstance(block, ConsoleBlock))
    return [list(block.commands) for block in blocks if not block.skipped or "tests/containers" in block.skipped]


class Operator:
    """Someone who types what a page says, in a checkout of their own.

    Attributes:
        folder: The checkout.
    """

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLETRAIN_")}
        self._environment |= variables | {"COLUMNS": "200", "HOME": str(folder)}
        self._environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self._environment['PATH']}"
        self._functions = ""

    def types(self, command: Command, ports: dict[str, str]) -> str:
        """What a command prints.

        Raises:
            AssertionError: it fails, or prints something else than the page shows.
        """
        text = command.text
        for shown, own in ports.items():
            text = text.replace(shown, own)
        if text.startswith("rpc() "):
            self._functions += f"{text}\n"
            return ""
        exported = re.match(r"export (\w+)=", text)
        done = self._run(f"{text}\nprintenv {exported[1]}" if exported else text)
        told = f"line {command.line}: {text}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, told
        if exported:
            self._environment[exported[1]] = done.stdout.strip()
        assert not command.expected or matches(command.expected, done.stdout), f"{told}\nis not what the page shows"
        return done.stdout

    def _run(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run it; on a crowded machine a service may not answer in time, and it is then run again."""

        def answered() -> subprocess.CompletedProcess[str] | None:
            done = subprocess.run(
                ["bash", "-c", f"set -e\n{self._functions}{text}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
            return None if done.returncode and "does not answer" in done.stderr else done

        found = wait_until(answered, _SECONDS, f"an answer: {text}")
        assert found is not None
        return found

    def follows(self, commands: list[Command], ports: dict[str, str] | None = None) -> None:
        """Type all commands of a block."""
        for command in commands:
            self.types(command, ports or {})


@pytest.fixture
def operator(tmp_path: Path, composition: Composition) -> Operator:
    for name in _LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    return Operator(tmp_path, dict(composition.variables) | {"COMPOSE_PROJECT_NAME": PROJECT})


@pytest.fixture(scope="module")
def composition() -> Iterator[Composition]:
    if missing := missing_images("head", "trainer"):
        pytest.skip(missing)
    for image in IMAGES.values():
        build(image, "LABEL malletrain.version=old")
    ports = {f"{name.upper()}_PORT": str(free_port()) for name in SERVICES}
    made = Composition(PROJECT, IMAGES | ports)
    made.down("--volumes")
    try:
        yield made
    finally:
        made.down("--volumes")
        subprocess.run(["docker", "image", "rm", *IMAGES.values()], capture_output=True, check=False)


def build(image: str, line: str) -> None:
    """Make an image of the newest one with a line of a Dockerfile."""
    newest = image.replace(":day2", ":latest")
    text = f"FROM {newest}\n{line}\n"
    subprocess.run(["docker", "build", "--tag", image, "-"], input=text, text=True, capture_output=True, check=True)


def test_day_2_in_containers(composition: Composition, operator: Operator) -> None:
    first, backup, restore, upgrade = section("day2.md", "In containers")
    operator.follows(first)
    composition.wait_for_jobs(lambda jobs: jobs["j000001"].samples > 0, "a training")
    operator.follows(backup)
    (archive,) = (operator.folder / "backups").glob("malletrain-*.tar.gz")
    assert archive.stat().st_mode & 0o777 == 0o600
    later = composition.submit(1_000, 1)
    operator.follows(restore)
    assert composition.jobs().keys() == {"j000001"}, f"{later} was submitted after the backup"
    before = composition.wait_for_jobs(
        lambda jobs: jobs["j000001"].state == "RUNNING", "the training after the restore"
    )
    for image in IMAGES.values():
        build(image, "LABEL malletrain.version=new")
    operator.follows(upgrade)
    for service in SERVICES:
        assert composition.inspect(service)["Config"]["Labels"]["malletrain.version"] == "new", service
    samples = before["j000001"].samples
    after = composition.wait_for_jobs(lambda jobs: jobs["j000001"].samples > samples, "the upgraded training")
    assert after.keys() == {"j000001"}
    assert composition.samples_lost("j000001") == 0


@needs_grpcurl
def test_grpcurl_in_containers(composition: Composition, operator: Operator) -> None:
    ports = {f":{shown}": f":{composition.variables[f'{name.upper()}_PORT']}" for name, shown in SHOWN.items()}
    (block,) = section("grpcurl.md", "In containers")
    operator.follows(block, ports)
    for service in SERVICES:
        bound = composition.inspect(service)["HostConfig"]["PortBindings"]
        assert [entry["HostIp"] for port in bound.values() for entry in port] == ["127.0.0.1"], service
