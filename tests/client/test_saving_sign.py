from __future__ import annotations

import os
from pathlib import Path

import pytest

from malletrain.client.saving_sign import SavingSign


def test_it_is_there_while_its_process_saves(tmp_path: Path) -> None:
    sign = SavingSign(tmp_path)
    sign.remove()
    assert list(tmp_path.iterdir()) == []
    sign.show()
    assert [path.name for path in (tmp_path / "saving").iterdir()] == [str(os.getpid())]
    sign.remove()
    assert list((tmp_path / "saving").iterdir()) == []


def test_a_sign_that_nobody_can_see_does_not_keep_from_saving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "saving").write_text("in the way")
    sign = SavingSign(tmp_path)
    sign.show()
    sign.remove()
    assert "nobody can be told that this process saves" in capsys.readouterr().err


def test_outside_malletrain_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sign = SavingSign(None)
    sign.show()
    sign.remove()
    assert list(tmp_path.iterdir()) == []
