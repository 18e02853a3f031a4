from __future__ import annotations

import pytest

from malletrain.agent.environment import problem_of_one_gpu


@pytest.mark.parametrize(
    "environment",
    [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "GPU-6ae4b2c1-0000-1111-2222-333344445555", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        {"ROCR_VISIBLE_DEVICES": " 3 ", "CUDA_VISIBLE_DEVICES": ""},
        {"ZE_AFFINITY_MASK": "1,"},
    ],
)
def test_one_gpu_is_told(environment: dict[str, str]) -> None:
    assert problem_of_one_gpu(environment) == ""


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, "does not say which GPU"),
        ({"PATH": "/bin", "NVIDIA_VISIBLE_DEVICES": "0"}, "does not say which GPU"),
        ({"CUDA_VISIBLE_DEVICES": " "}, "does not say which GPU"),
        ({"CUDA_VISIBLE_DEVICES": ","}, "does not say which GPU"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, "more than one GPU: CUDA_VISIBLE_DEVICES=0,1"),
        ({"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0,1"}, "more than one GPU: ROCR_VISIBLE_DEVICES"),
    ],
)
def test_no_worker_starts_without(environment: dict[str, str], said: str) -> None:
    assert said in problem_of_one_gpu(environment)


def test_what_is_told_is_cut() -> None:
    assert len(problem_of_one_gpu({"CUDA_VISIBLE_DEVICES": "0," * 100_000})) < 200
