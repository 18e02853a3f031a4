from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.cli.shared.settings import AllSettings, load
from malletrain.runtime.config import Addresses, Settings, TlsSettings
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.peer import Peer
from malletrain.runtime.settings_file import SERVICES


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_defaults_run_as_they_are() -> None:
    settings = load()
    assert settings.addresses.monitor == "127.0.0.1:7704"
    assert len({settings.addresses.of(name) for name in SERVICES}) == len(SERVICES)
    assert settings.addresses.monitor_for_nodes == ""


def test_state_is_validated_in_tests_and_not_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().validate_state
    monkeypatch.delenv("MALLETRAIN_VALIDATE_STATE")
    assert not load().validate_state


def test_what_others_may_reach_may_be_any_address_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLETRAIN_ADDRESSES__MONITOR_FOR_NODES", "10.0.0.1:7714")
    assert load().addresses.monitor_for_nodes == "10.0.0.1:7714"
    for wrong in ("nonsense", ":1", "10.0.0.1:0", "10.0.0.1:70000"):
        monkeypatch.setenv("MALLETRAIN_ADDRESSES__MONITOR_FOR_NODES", wrong)
        with pytest.raises(InvalidInputError, match=r"addresses\.monitor_for_nodes: expected HOST:PORT"):
            load()


def test_a_file_sets_sections_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "malletrain.toml").write_text("[allocator]\nforward_seconds = 33\ntime_limit_seconds = 2\n")
    monkeypatch.setenv("MALLETRAIN_ALLOCATOR__FORWARD_SECONDS", "44")
    settings = load()
    assert (settings.allocator.forward_seconds, settings.allocator.time_limit_seconds) == (44.0, 2.0)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[allocator]\nforward_seconds = 0\n", "allocator.forward_seconds"),
        ("[allocator]\nforward = 5\n", "allocator.forward"),
        ('[addresses]\nmonitor = "0.0.0.0:7704"\n', "addresses.monitor"),
        ('[addresses]\nmonitor = "127.0.0.1"\n', "addresses.monitor"),
        ('[addresses]\nmonitor = ":7704"\n', "addresses.monitor"),
        ('[addresses]\nmonitor = "head:70000"\n', "addresses.monitor"),
        ('[tls]\ncertificate_file = "/a"\n', "tls"),
        ('[tls]\ncertificate_file = "/a"\nkey_file = "/b"\n', "tls"),
        ("[tls]\nlifespan_seconds = 1\n", "tls.lifespan_seconds"),
        ('log_level = "loud"\n', "log_level"),
    ],
)
def test_a_wrong_value_names_its_field(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "other.toml"
    path.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        load(path)
    assert caught.value.field == field


def test_services_may_listen_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text('state_dir = "/s"\n[addresses]\nmonitor = "head.example.org:7704"\n')
    settings = load(path)
    assert settings.peer("monitor") == Peer("monitor", "head.example.org:7704", Path("/s/ca.pem"), "monitor")


@pytest.mark.parametrize(
    ("tls", "role"),
    [
        ({}, "monitor"),
        ({"server_name": "host"}, None),
        ({"certificate_file": "/c", "key_file": "/k"}, None),
        ({"certificate_file": "/c", "key_file": "/k", "server_name": "role"}, "monitor"),
    ],
)
def test_how_services_are_known(tls: dict[str, str], role: str | None) -> None:
    addresses = Addresses(monitor="head.example.org:7704")
    settings = Settings(addresses=addresses, tls=TlsSettings.model_validate({"authority_file": "/site/ca.pem"} | tls))
    assert settings.peer("monitor") == Peer("monitor", "head.example.org:7704", Path("/site/ca.pem"), role)
    # On loopback it is always the installation's own certificate, which names the role.
    own = Path("/site/ca.pem") if "certificate_file" not in tls else settings.state_dir / "ca.pem"
    assert settings.peer("profiler") == Peer("profiler", "127.0.0.1:7705", own, "profiler")


def test_a_file_that_is_no_toml_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[allocator\n")
    with pytest.raises(InvalidInputError, match=r"broken\.toml"):
        load(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--config"):
        load(tmp_path / "nowhere.toml")


def test_databases_lie_in_the_state_folder(tmp_path: Path) -> None:
    settings = AllSettings(state_dir=tmp_path)
    assert settings.database("monitor").file == tmp_path / "monitor.sqlite"
