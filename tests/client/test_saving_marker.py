from __future__ import annotations

import os
from pathlib import Path

import pytest

from malletrain.client.saving_marker import SavingMarker


def test_it_is_there_while_its_process_saves(tmp_path: Path) -> None:
    marker = SavingMarker(tmp_path)
    marker.remove()
    assert list(tmp_path.iterdir()) == []
    marker.create()
    assert [path.name for path in (tmp_path / "saving").iterdir()] == [str(os.getsid(0))]
    marker.remove()
    assert list((tmp_path / "saving").iterdir()) == []


def test_a_failure_is_printed_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "saving").write_text("in the way")
    marker = SavingMarker(tmp_path)
    marker.create()
    marker.remove()
    assert "can't tell the supervisor by saving/" in capsys.readouterr().err


def test_outside_malletrain_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    marker = SavingMarker(None)
    marker.create()
    marker.remove()
    assert list(tmp_path.iterdir()) == []
