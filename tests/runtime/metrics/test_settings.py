from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.cli.shared.settings import load
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.settings_file import SERVICES


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_metrics_are_served_nowhere_by_default() -> None:
    assert [load().metrics.of(service) for service in SERVICES] == [""] * len(SERVICES)


def test_an_address_off_loopback_has_to_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLETRAIN_METRICS__MONITOR", "0.0.0.0:9704")
    with pytest.raises(InvalidInputError, match=r"metrics: expected a loopback address in metrics\.monitor, or"):
        load()
    monkeypatch.setenv("MALLETRAIN_METRICS__ALLOW_REMOTE", "true")
    assert load().metrics.monitor == "0.0.0.0:9704"


@pytest.mark.parametrize("wrong", ["nonsense", ":1", "127.0.0.1:0", "127.0.0.1:70000", "127.0.0.1:٣"])
def test_what_is_no_address_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLETRAIN_METRICS__SCAVENGER", wrong)
    with pytest.raises(InvalidInputError, match=r"metrics\.scavenger: expected HOST:PORT, or nothing"):
        load()


def test_the_setting_of_earlier_versions_is_not_taken_for_another(tmp_path: Path) -> None:
    (tmp_path / "malletrain.toml").write_text('[addresses]\nscavenger_metrics = "127.0.0.1:7711"\n')
    with pytest.raises(InvalidInputError, match=r"addresses\.scavenger_metrics: expected a known key"):
        load()
