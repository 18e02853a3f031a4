"""Where settings stand."""

from __future__ import annotations

import pytest

from malletrain.cli.shared.settings import AllSettings
from malletrain.runtime.settings_file import line_of, nearest_key, variable_of

FILE = """\
state_dir = "/var/lib/malletrain"
# [scavenger] of the old cluster
metrics.max_jobs = 7

[scavenger]
source = "slurm"
nodes = [
  "n1",
]
[ scavenger . slurm ]  # where the partition is
"partitions" = ["gpu"]
[scavenger.pools."a.b"]
colour = 1
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("state_dir",), 1),
        (("metrics", "max_jobs"), 3),
        (("scavenger",), 5),
        (("scavenger", "nodes", 0), 7),
        (("scavenger", "slurm", "partitions"), 11),
        (("scavenger", "slurm", "not_there"), 10),
        (("scavenger", "pools", "a.b", "colour"), 13),
        (("allocator", "forward_seconds"), None),
        ((), None),
    ],
)
def test_lines(place: tuple[str | int, ...], line: int | None) -> None:
    assert line_of(FILE, place) == line


@pytest.mark.parametrize("text", ["", "=", "[", "[[", "]", "a", "a.b.c", '"', "[a]]\n= =", "a = [\n[b]\n"])
def test_what_is_no_toml_has_no_lines_of_settings(text: str) -> None:
    assert line_of(text, ("scavenger", "speed")) is None


def test_variables_are_told_as_they_are_spelled() -> None:
    environment = {"malletrain_scavenger__Speed": "1", "MALLETRAIN_METRICS": "{}", "OTHER": ""}
    assert variable_of(environment, "MALLETRAIN_", ("scavenger", "speed")) == "malletrain_scavenger__Speed"
    assert variable_of(environment, "MALLETRAIN_", ("metrics", "max_jobs", 3)) == "MALLETRAIN_METRICS"
    assert variable_of(environment, "MALLETRAIN_", ("tls", "key_file")) is None


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        (("scavanger",), "scavenger"),
        (("scavenger", "slurm", "partition"), "partitions"),
        (("allocator", "foward_seconds"), "forward_seconds"),
        (("allocator", "xyz"), None),
        (("nothing", "like", "this"), None),
    ],
)
def test_what_was_probably_meant(place: tuple[str, ...], meant: str | None) -> None:
    assert nearest_key(AllSettings, place) == meant
