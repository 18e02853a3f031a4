"""Names of GPUs, and what their workers are told of them."""

from __future__ import annotations

import pytest

from malletrain.common.gpus import gpu_name, gpu_number, node_of, visible_gpu


def test_a_gpu_is_named_by_its_node_and_number() -> None:
    name = gpu_name("nid-00.7_a", 12)
    assert (name, node_of(name), gpu_number(name)) == ("nid-00.7_a#12", "nid-00.7_a", 12)
    assert (node_of("n1"), gpu_number("n1")) == ("n1", None)


@pytest.mark.parametrize(
    ("number", "inherited", "expected"),
    [(0, "", "0"), (3, "", "3"), (1, "4,5", "5"), (1, "GPU-a, GPU-b", "GPU-b"), (2, "4,5", "2"), (1, "4,,6", "1")],
)
def test_a_scheduler_s_own_numbers_and_names_are_kept(number: int, inherited: str, expected: str) -> None:
    assert visible_gpu(number, inherited) == expected
