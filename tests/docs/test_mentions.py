"""What the docs mention exists: linked files and anchors, verbs and options, settings, files, make targets."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from malletrain.caller.job_file import read_job_file
from malletrain.caller.searching.start import read_search_file
from malletrain.cli.jobs.needs import parse_nodes
from malletrain.cli.main import application
from malletrain.runtime.settings_file import SERVICES
from tests.docs.markdown import PAGES, anchors, fences, links, name_of, spans
from tests.docs.shell import ROOT
from tools.docs.settings import setting_names, tables_by_name

TABLES_BY_NAME = tables_by_name()
SECTIONS = ("access", "addresses", "tracing", *SERVICES)
VERBS: Mapping[str, Any] = typer.main.get_command(application()).commands  # type: ignore[attr-defined]

each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@each_page
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in links(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target) or target.startswith("reference/"):
            continue  # pages of the reference are made with the site, whose build refuses links that lead nowhere
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert there.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(there.read_text(encoding="utf-8")), target


@each_page
def test_verbs_and_options_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for words in _command_lines(text):
        assert not (wrong := _wrong_word(words)), f"{wrong!r} in `malletrain {' '.join(words)}`"


def _command_lines(text: str) -> Iterator[list[str]]:
    """Words after `malletrain` of every command line in blocks and code spans."""
    blocks = [block.replace("\\\n", " ") for language in ("console", "bash", "") for block in fences(text, language)]
    indented = re.findall(r"^ {4}(malletrain .*)$", text, re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()] + indented
    for line in [*lines, *spans(text)]:
        for part in re.split(r" & | && | \| ", line):
            words = part.split()
            if words[:1] == ["malletrain"]:
                yield words[1:]
            elif len(words) > 1 and words[0] in VERBS and words[1].startswith("--"):
                yield words


def _wrong_word(words: list[str]) -> str:
    """The first word that is neither a verb nor one of its options; empty where all are."""
    verbs, options = VERBS, {"--help", "--version", "--install-completion", "--show-completion"}
    for word in words:
        name = word.partition("=")[0].rstrip(".,")
        if name in ("--", "#", "|", "…"):
            break
        if name.startswith("-"):
            if name not in options:
                return word
        elif name in verbs:
            options = {option for parameter in verbs[name].params for option in parameter.opts} | {"--help"}
            verbs = getattr(verbs[name], "commands", {})
        elif verbs and name.islower() and name.isalpha():
            return word
    return ""


@each_page
def test_settings_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = setting_names()
    for block in fences(text, "toml"):
        found = tomllib.loads(block)
        if "search" in found:
            read_search_file(block, page.name, parse_nodes)
        elif "command" in found:
            assert read_job_file(block, page.name, parse_nodes).command == tuple(found["command"])
        else:
            assert set(_keys(found, "")) <= known
    for span in spans(text):
        if re.fullmatch(rf"({'|'.join(SECTIONS)})\.[a-z_.]+", span):
            assert span in known or span.endswith((".py", ".proto")) or _is_module(span), span
        elif name := re.match(r"MALLETRAIN_([A-Z]+(?:_[A-Z]+)*(?:__[A-Z_]+)+)", span):
            assert name[1].lower().replace("__", ".") in known, span


def _keys(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, value in table.items():
        yield f"{prefix}{name}"
        # Below some settings there are names that the operator chooses; others are lists of tables.
        inner = () if f"{prefix}{name}" in TABLES_BY_NAME else value if isinstance(value, list) else (value,)
        for entry in inner:
            if isinstance(entry, dict):
                yield from _keys(entry, f"{prefix}{name}.")


def _is_module(name: str) -> bool:
    """Whether this is a module of `malletrain`, or a name in one."""
    parent, _, last = name.rpartition(".")
    try:
        if importlib.util.find_spec(f"malletrain.{name}") is not None:
            return True
    except ModuleNotFoundError:
        pass
    return "." in name and hasattr(importlib.import_module(f"malletrain.{parent}"), last)


@each_page
def test_files_and_targets_exist(page: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("needs a git checkout")
    paths = set(listed.stdout.splitlines())
    ends = {"/".join(path.split("/")[start:]) for path in paths for start in range(path.count("/") + 1)}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    made = set(re.findall(r"docs-test: file: (\S+)", text))
    for span in spans(text):
        if re.fullmatch(r"[\w./-]+\.(py|sh|proto)", span):
            assert span.removeprefix("./") in ends | made, span
        elif target := re.fullmatch(r"make ([a-z-]+)", span):
            assert target[1] in targets, span
