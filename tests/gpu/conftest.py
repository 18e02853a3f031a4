"""Tests of this folder need a GPU. GPU_TESTS_ON=cpu runs those that can on CPUs, to try the tests themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ON = "GPU_TESTS_ON"


def kind_of_device() -> str:
    """cuda, cpu where that is asked for, or nothing: no test of this folder can run."""
    if os.environ.get(ON) == "cpu":
        return "cpu"
    try:
        import torch
    except ImportError:
        return ""
    return "cuda" if torch.cuda.is_available() else ""


@pytest.fixture(autouse=True, scope="session")
def device() -> str:
    """Where the workers of these tests train."""
    kind = kind_of_device()
    if not kind:
        pytest.skip("needs an NVIDIA GPU that torch can use")
    return kind


@pytest.fixture
def only_gpu(device: str) -> None:
    """Skip what says nothing on a CPU."""
    if device != "cuda":
        pytest.skip("needs an NVIDIA GPU that torch can use")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The job's folder."""
    return tmp_path / "job"
