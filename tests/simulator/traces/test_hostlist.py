from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.runtime.errors import InvalidInputError
from malletrain.simulator.traces.hostlist import expand
from tests.support.shared import shared_path


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("n1", ["n1"]),
        ("n[001-003,7],gpu1", ["n001", "n002", "n003", "n7", "gpu1"]),
        ("r[1-2]n[08-10]-ib", [f"r{rack}n{node}-ib" for rack in (1, 2) for node in ("08", "09", "10")]),
        ("a-b.site.edu,c[5]", ["a-b.site.edu", "c5"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
    ],
)
def test_what_slurm_writes(expression: str, names: list[str]) -> None:
    assert expand(expression) == tuple(names)


@pytest.mark.parametrize(
    "expression",
    ["", "n[", "n]", "n[1-", "n[a-b]", "n[3-1]", "n[1,]", "n[]", "a,,b", "a b", "n[[1]]", "n[1-2", "[1-2]"],
)
def test_what_is_no_hostlist(expression: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^log:3: expected a node list such as"):
        expand(expression, "log:3")


def test_a_list_beyond_any_machine_is_refused_at_once() -> None:
    with pytest.raises(InvalidInputError, match="at most 1000000 nodes"):
        expand("n[0-999998][0-999998]")


@given(numbers=st.sets(st.integers(0, 300), min_size=1), width=st.integers(1, 5))
def test_ranges_give_back_the_numbers(numbers: set[int], width: int) -> None:
    names = [f"n{number:0{width}d}" for number in sorted(numbers)]
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1 and len(f"{ranges[-1][0]:0{width}d}") == len(f"{number:0{width}d}"):
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    parts = (f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}" for first, last in ranges)
    assert list(expand(f"n[{','.join(parts)}]")) == names


@given(text=st.text("n0123[]-, ", max_size=12))
def test_anything_is_names_or_an_error(text: str) -> None:
    try:
        names = expand(text)
    except InvalidInputError:
        return
    assert names
    assert all(name and not set(name) & set("[], ") for name in names)


def test_lists_of_a_real_slurm() -> None:
    table = shared_path("schedulers/samples/slurm/multi32_queue/sinfo.txt").read_text().splitlines()[1:]
    nodes = [name for line in table if line.startswith("main") for name in expand(line.split()[-1])]
    assert sorted(nodes) == [f"n{number:03d}" for number in range(1, 33)]
