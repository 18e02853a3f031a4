"""Rank 0's state reaches every rank whole."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from tests.support.generations import Launcher

SCRIPT = Path(__file__).with_name("sharing_trainer.py")


@pytest.mark.parametrize("scale", [1, 3])
def test_all_ranks_have_what_rank_0_has(tmp_path: Path, scale: int) -> None:
    with Launcher(SCRIPT, tmp_path).generation(scale) as workers:
        codes = workers.join()
    logs = [(tmp_path / f"{rank}.log").read_text() for rank in range(scale)]
    assert codes == [0] * scale, logs
    assert all(f"rank {rank} has it" in log for rank, log in enumerate(logs))
