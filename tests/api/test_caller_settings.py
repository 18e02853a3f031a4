"""Where the services are, as callers without pydantic read it: as the services' own settings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from malletrain.caller.settings import KNOWN, caller_settings
from malletrain.cli.shared.settings import AllSettings, load
from malletrain.runtime.config import Addresses, TlsSettings
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.settings_file import SERVICES

SITE = """
[tls]
certificate_file = "/etc/site.pem"
key_file = "/etc/site.key"
authority_file = "/etc/ca.pem"
"""
REMOTE = '[addresses]\njob_manager = "head.site:7703"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "malletrain.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "",
        'state_dir = "/var/lib/malletrain"\n',
        'state_dir = "/var/lib/malletrain"\n' + REMOTE,
        'state_dir = "/var/lib/malletrain"\n' + REMOTE + SITE,
        REMOTE + SITE + 'server_name = "role"\n',
        REMOTE + '[tls]\nserver_name = "host"\nauthority_file = "/etc/ca.pem"\n',
        '[tls]\nauthority_file = "/etc/ca.pem"\n',
        '[access]\nmunge = "off"\nmunge_path = "/opt/munge"\n',
    ],
)
def test_callers_see_the_services_as_the_services_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write(tmp_path, text)
    own, seen = load(config), caller_settings(config, environment={})
    assert [seen.peer(name) for name in SERVICES] == [own.peer(name) for name in SERVICES]
    assert (seen.state_dir, seen.own_authority_file) == (own.state_dir, own.own_authority_file)
    assert (seen.access.munge, seen.access.munge_path) == (own.access.munge, own.access.munge_path)


def test_variables_precede_the_file_and_arguments_precede_both(tmp_path: Path) -> None:
    config = write(tmp_path, 'state_dir = "/from/file"\n' + REMOTE)
    variables = {"MALLETRAIN_STATE_DIR": "/from/variable", "malletrain_addresses__job_manager": "127.0.0.1:1"}
    found = caller_settings(config, environment=variables)
    assert (found.state_dir, found.addresses["job_manager"]) == (Path("/from/variable"), "127.0.0.1:1")
    assert caller_settings(config, Path("/given"), variables).state_dir == Path("/given")


def test_the_file_in_a_named_state_folder_is_read(tmp_path: Path) -> None:
    write(tmp_path, REMOTE)
    found = caller_settings(state_dir=tmp_path, environment={})
    assert (found.addresses["job_manager"], found.state_dir) == ("head.site:7703", tmp_path)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("state_dir = 3\n", "state_dir"),
        ("addresses = 3\n", "addresses"),
        ('[addresses]\nmonitor = "nowhere"\n', "addresses.monitor"),
        ('[tls]\nserver_name = "dns"\n', "tls.server_name"),
        ('[access]\nmunge = "perhaps"\n', "access.munge"),
    ],
)
def test_a_setting_that_can_not_be_used_is_named(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        caller_settings(write(tmp_path, text), environment={})
    assert caught.value.field == field


@pytest.mark.parametrize("content", [b"state_dir = ", b"\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "malletrain.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="TOML") as caught:
        caller_settings(path, environment={})
    assert caught.value.field == str(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[adresses]\nmonitor = 'a:1'\n", r"adresses: expected a known key, such as addresses \(.*toml:1\)"),
        ("\n[addresses]\njob_manger = 'a:1'\n", r"addresses.job_manger: .* such as job_manager \(.*toml:3\)"),
        ("[tls]\nxyz = 1\n", r"tls.xyz: expected a known key \(.*toml:2\)"),
        (
            "[tls]\nserver_name = 'hots'\n",
            r"tls.server_name: expected one of auto, .* \(.*toml:2\), got 'hots'",
        ),
    ],
)
def test_what_is_misspelled_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        caller_settings(write(tmp_path, text), environment={})


def test_the_known_keys_are_those_of_the_services() -> None:
    assert set(KNOWN[""]) == set(AllSettings.model_fields)
    assert set(KNOWN["addresses"]) == set(Addresses.model_fields)
    assert set(KNOWN["tls"]) == set(TlsSettings.model_fields)
