"""Searches in TOML: the fields of a job file and a table; what is wrong is told with its line."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import pytest

import malletrain
from malletrain.caller.searching.space import parse_space
from malletrain.caller.searching.start import SEARCH_KEYS, SearchRequest, check_request, in_file, read_search_file
from malletrain.cli.jobs.needs import parse_nodes
from malletrain.runtime.errors import InvalidInputError

pytest.importorskip("optuna", reason="needs malletrain[search]")

WHOLE = """\
command = ["python", "train.py", "--lr={lr}", "--optimizer={optimizer}"]
name = "resnet"
max = 4

[search]
metric = "accuracy"
direction = "maximize"
trials = 12
at-once = 3
seed = 7

[search.space]
lr = { low = 1e-5, high = 0.1, log = true }
optimizer = ["adam", "sgd"]
"""


def read(text: str) -> SearchRequest:
    return read_search_file(text, "s.toml", parse_nodes)


def test_a_search_file() -> None:
    asked = read(WHOLE)
    assert (asked.job.name, asked.job.max_nodes, asked.metric, asked.trials, asked.at_once, asked.seed) == (
        *("resnet", 4, "accuracy", 12, 3, 7),
    )
    assert parse_space(asked.space).keys() == {"lr", "optimizer"}
    check_request(asked)


def test_the_same_can_be_said_in_a_file_and_in_python() -> None:
    keys = {key.replace("-", "_") for key in SEARCH_KEYS}
    assert keys | {"job", "cancel_on_exit"} == {entry.name for entry in fields(SearchRequest)}
    assert keys < set(inspect.signature(malletrain.search).parameters)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("metric =", "metrik =", r"s\.toml:6: expected a known key, such as metric, got 'metrik'"),
        ('metric = "accuracy"\n', "", r"s\.toml:5: expected a key metric in \[search\]"),
        ("max = 4", "maxx = 4", r"s\.toml:3: expected a known key, such as max"),
        ("max = 4", 'array = "lr=1,2"', r"s\.toml:3: expected no array beside a search"),
        ("trials = 12", "trials = 0", r"s\.toml:8: expected trials to be a whole number from 1"),
        ("at-once = 3", "at-once = 2000", r"s\.toml:9: expected at_once to be a whole number from 1 to 1000"),
        ("high = 0.1", "high = 1e-6", r"s\.toml:13: expected space\.lr to be low not above high"),
        ('["adam", "sgd"]', '"adam"', r"s\.toml:14: expected space\.optimizer to be"),
        ("--lr={lr}", "--lr=1", r"s\.toml:12: expected space to be \{lr\} in the command or in a variable"),
        ('"maximize"', '"up"', r"s\.toml:7: expected direction to be minimize or maximize"),
        ("max = 4", 'backend = "mpi"', r"s\.toml:3: expected --backend to be one of"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(before: str, after: str, words: str) -> None:
    text = WHOLE.replace(before, after)
    assert text != WHOLE
    with pytest.raises(InvalidInputError) as caught:
        check_request(read(text))
    assert re.match(words, str(in_file(caught.value, text, "s.toml")))


def test_a_job_file_is_no_search() -> None:
    with pytest.raises(InvalidInputError, match=r"s\.toml: expected a table \[search\]"):
        read('command = ["true"]\n')
