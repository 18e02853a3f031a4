"""A Python command line is taken apart as the interpreter itself does it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.common.python_command import PythonCommand, parse_python_command

SCRIPT, MODULE = "script", "module"
RUNS = [
    # Options, kind, options left when the target is taken away.
    ("s.py", SCRIPT, ""),
    ("-u s.py", SCRIPT, "-u"),
    ("-Eu s.py", SCRIPT, "-Eu"),
    ("-W ignore s.py", SCRIPT, "-W ignore"),
    ("-Wignore s.py", SCRIPT, "-Wignore"),
    ("-uWignore s.py", SCRIPT, "-uWignore"),
    ("-uW ignore -u s.py", SCRIPT, "-uW ignore -u"),
    ("-X dev s.py", SCRIPT, "-X dev"),
    ("-Xdev s.py", SCRIPT, "-Xdev"),
    ("-W -m s.py", SCRIPT, "-W -m"),
    ("--check-hash-based-pycs always s.py", SCRIPT, "--check-hash-based-pycs always"),
    ("-u-check-hash-based-pycs never s.py", SCRIPT, "-u-check-hash-based-pycs never"),
    ("-- s.py", SCRIPT, "--"),
    ("-u -- s.py", SCRIPT, "-u --"),
    ("-Rt s.py", SCRIPT, "-Rt"),
    ("-m pkg", MODULE, ""),
    ("-mpkg", MODULE, ""),
    ("-um pkg", MODULE, "-u"),
    ("-umpkg", MODULE, "-u"),
    ("-X dev -Eum pkg", MODULE, "-X dev -Eu"),
    ("-W ignore -mpkg", MODULE, "-W ignore"),
]
NEITHER = [
    *("", "-", "-u", "-u -", "-- -", "--", "-c pass", "-cpass", "-uc pass", "-c", "-m", "-um", "-W", "-uX"),
    *("-V", "--version s.py", "-h s.py", "-? s.py", "--help s.py", "--help-all s.py", "-uV s.py", "-J s.py", "-z s.py"),
    *("--check-hash-based-pycs s.py", "--check-hash-based-pycs some s.py", "--check-hash-based-pycs=always s.py"),
    *("--unknown s.py", "-u-", "-cm pkg"),
]


@pytest.mark.parametrize(("words", "kind", "left"), RUNS)
@pytest.mark.parametrize("arguments", [[], ["a", "-m", "b"], ["-u", "--", "-"]])
def test_scripts_and_modules(words: str, kind: str, left: str, arguments: list[str]) -> None:
    found = parse_python_command(["python", *words.split(), *arguments])
    assert found is not None
    assert found.kind == kind
    assert (found.interpreter, found.target) == (("python", *left.split()), "s.py" if kind == SCRIPT else "pkg")
    assert found.arguments == tuple(arguments)


@pytest.mark.parametrize("words", NEITHER)
def test_what_runs_neither_a_script_nor_a_module(words: str) -> None:
    assert parse_python_command(["python", *words.split()]) is None


def test_a_script_after_two_dashes_may_look_like_an_option() -> None:
    found = parse_python_command(["python", "-u", "--", "-m", "pkg"])
    assert found == PythonCommand(("python", "-u", "--"), "script", "-m", ("pkg",))


@pytest.mark.parametrize(("words", "skips"), [("-x s.py", True), ("-ux s.py", True), ("-Xx s.py x", False)])
def test_scripts_whose_first_line_is_skipped(words: str, skips: bool) -> None:
    found = parse_python_command(["python", *words.split()])
    assert found is not None
    assert found.skips_first_line is skips


@pytest.mark.parametrize(
    ("program", "is_python"),
    [
        *((name, True) for name in ("python", "python3", "/usr/bin/python3.11", "./python3.13t", "python3.11.7")),
        *((name, False) for name in ("./train.sh", "pythonic", "python3.", "python3-config", "", "python\n")),
    ],
)
def test_interpreters_are_known_by_their_name(program: str, is_python: bool) -> None:
    assert (parse_python_command([program, "s.py"]) is not None) is is_python


def test_no_command_at_all() -> None:
    assert parse_python_command([]) is None


FLAGS = st.text("bBdEiIOPqRsStuv", min_size=1, max_size=3).map(lambda letters: [f"-{letters}"])
ARGUMENT = st.text(min_size=1, max_size=4).filter(lambda text: "\0" not in text)
WITH_ARGUMENT = st.tuples(st.text("uEb", max_size=2), st.sampled_from("WX"), ARGUMENT, st.booleans()).map(
    lambda parts: [f"-{parts[0]}{parts[1]}{parts[2]}"] if parts[3] else [f"-{parts[0]}{parts[1]}", parts[2]]
)
PYCS = st.sampled_from(["default", "always", "never"]).map(lambda value: ["--check-hash-based-pycs", value])
OPTIONS = st.lists(st.one_of(FLAGS, WITH_ARGUMENT, PYCS), max_size=4).map(lambda words: list(itertools.chain(*words)))
ARGUMENTS = st.lists(st.one_of(st.sampled_from(["-m", "-c", "--", "-", "-u"]), st.text(max_size=3)), max_size=4)


@given(OPTIONS, st.booleans(), st.text(max_size=5), ARGUMENTS)
def test_any_options_before_a_script(options: list[str], dashes: bool, script: str, arguments: list[str]) -> None:
    if script == "-" or (script.startswith("-") and not dashes):
        script = f"s{script}"
    interpreter = ["python", *options, *(["--"] if dashes else [])]
    found = parse_python_command([*interpreter, script, *arguments])
    assert found == PythonCommand(tuple(interpreter), "script", script, tuple(arguments))


@given(OPTIONS, st.text("uEbP", max_size=2), st.booleans(), ARGUMENT, ARGUMENTS)
def test_any_options_before_a_module(
    options: list[str], flags: str, joined: bool, module: str, arguments: list[str]
) -> None:
    words = [f"-{flags}m{module}"] if joined else [f"-{flags}m", module]
    left = [f"-{flags}"] if flags else []
    found = parse_python_command(["python", *options, *words, *arguments])
    assert found == PythonCommand(("python", *options, *left), "module", module, tuple(arguments))


@given(st.lists(st.text("-mcWXu sp.", max_size=4), max_size=6))
def test_with_another_script_the_options_are_the_same(words: list[str]) -> None:
    found = parse_python_command(["python", *words])
    if found is not None:
        assert words[len(words) - len(found.arguments) :] == list(found.arguments)
        other = [*found.interpreter, "other.py", *found.arguments]
        assert parse_python_command(other) == PythonCommand(found.interpreter, "script", "other.py", found.arguments)


SHOW = "import json, sys\nprint(json.dumps([__name__, __spec__ and __spec__.name, sys.argv]))\n"


@pytest.mark.parametrize("words", [words for words, _, _ in RUNS] + NEITHER)
def test_the_interpreter_itself_agrees(tmp_path: Path, words: str) -> None:
    (tmp_path / "s.py").write_text(SHOW)
    (tmp_path / "pkg.py").write_text(SHOW)
    arguments = (
        [] if words in ("", "-", "-u", "-u -", "-- -", "--", "-c", "-m", "-um", "-W", "-uX", "-u-") else ["a", "-b"]
    )
    command = [sys.executable, *words.split(), *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    found = parse_python_command(command)
    if found is None:
        assert not done.stdout.startswith('["__main__"')
        return
    name, module, argv = json.loads(done.stdout)
    assert (name, module) == ("__main__", "pkg" if found.kind == "module" else None)
    assert argv[1:] == list(found.arguments)
    assert argv[0] == (found.target if found.kind == "script" else str(tmp_path / "pkg.py"))
