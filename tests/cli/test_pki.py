"""`malletrain pki` and what `malletrain doctor` says of certificates."""

from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from malletrain.cli.main import application
from malletrain.cli.operate.doctor_access import examine_certificates
from malletrain.runtime.access.pki import ensure_certificate, publish_authority
from malletrain.runtime.clock import SystemClock
from malletrain.runtime.config import Addresses, Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.runtime.settings_file import SERVICES
from malletrain.tls.files import read_certificate_file
from malletrain.tls.names import SERVICE_ROLES, name_of, node_name
from tests.tls.serving import serial
from tests.tls.site import SiteAuthority

DAY = 86400.0


@pytest.fixture(autouse=True)
def _configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "malletrain.toml").write_text(f'state_dir = "{tmp_path}/state"\n')


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with the certificates of Monitor and of agents."""
    folder = tmp_path / "state"
    for role in ("monitor", "agent"):
        ensure_certificate(folder, role, SystemClock(), DAY)
    publish_authority(folder, folder / "ca.pem", SystemClock())
    return folder


def run(*arguments: str) -> str:
    done = CliRunner().invoke(application(), ["pki", *arguments], catch_exceptions=False, env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    return done.stdout


def settings(state: Path, **addresses: str) -> Settings:
    return Settings(state_dir=state, addresses=Addresses(**addresses))


def test_show_lists_what_there_is(state: Path) -> None:
    found = {entry["role"]: entry for entry in json.loads(run("show", "--json"))}
    assert set(found) == {"authority", "monitor", "agent"}
    entry = found["monitor"]
    assert set(entry) == {"role", "serial", "notBefore", "notAfter", "fingerprint", "path"}
    path = state / "keys/certificates/monitor.pem"
    assert int(entry["serial"], 16) == serial(path)
    assert entry["path"] == str(path)
    assert entry["notBefore"] < time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) < entry["notAfter"]
    assert len(entry["fingerprint"]) == 64
    table = run("show")
    assert all(role in table for role in found)
    assert entry["notAfter"].replace("T", " ").removesuffix("Z") in table
    assert "PRIVATE" not in table


def test_without_certificates_there_is_nothing_to_show_or_renew(tmp_path: Path) -> None:
    assert json.loads(run("show", "--json")) == []
    assert "renewed" not in run("renew")
    assert not (tmp_path / "state/keys/ca.key").exists()


def test_show_lists_the_sites_own(tmp_path: Path) -> None:
    tls = SiteAuthority(tmp_path / "site").settings("192.0.2.7")
    text = f'certificate_file = "{tls.certificate_file}"\nkey_file = "{tls.key_file}"\n'
    with (tmp_path / "malletrain.toml").open("a") as file:
        file.write(f'[tls]\n{text}authority_file = "{tls.authority_file}"\n')
    (entry,) = json.loads(run("show", "--json"))
    assert (entry["role"], entry["path"]) == ("site", str(tls.certificate_file))


def test_renew_makes_all_anew_or_those_that_are_named(state: Path) -> None:
    paths = [state / f"keys/certificates/{role}.pem" for role in ("monitor", "profiler")]
    ensure_certificate(state, "profiler", SystemClock(), DAY)
    shared = serial(state / "keys/certificates/agent.pem")
    first = [serial(path) for path in paths]
    run("renew", "monitor")
    second = [serial(path) for path in paths]
    assert (second[0] != first[0], second[1] == first[1]) == (True, True)
    run("renew")
    assert not {*first, *second} & {serial(path) for path in paths}
    run("renew", "supervisor")
    assert (state / "keys/certificates/supervisor.pem").exists()
    assert serial(state / "keys/certificates/agent.pem") == shared, "agents of 0.1 get no other one"


@pytest.mark.usefixtures("state")
def test_renew_of_an_unknown_role_is_wrong_use() -> None:
    for role in ("boss", "agent"):
        with pytest.raises(InvalidInputError, match="role: expected one of scavenger"):
            run("renew", role)


def test_node_writes_a_certificate_that_is_for_this_node_alone(tmp_path: Path, state: Path) -> None:
    path = tmp_path / "cn001.pem"
    path.write_text("an old one, which all may read")
    said = run("node", "cn001", str(path), "--days", "30")
    assert said == f"written: {path}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    found = x509.load_pem_x509_certificate(read_certificate_file(path).certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [name_of("agent"), node_name("cn001")]
    assert found.not_valid_after_utc.timestamp() == pytest.approx(time.time() + 30 * DAY, abs=60)
    assert str(path) not in run("show"), "it is the node's, not this machine's"
    assert not list(state.rglob("cn001*"))


def test_node_refuses_what_is_no_node_and_a_file_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="NODE: expected the name of a node"):
        run("node", "a b", str(tmp_path / "file.pem"))
    with pytest.raises(InvalidInputError, match="FILE: expected a file that can be written"):
        run("node", "n1", str(tmp_path / "none" / "file.pem"))


def test_doctor_is_content_with_good_certificates(tmp_path: Path, state: Path) -> None:
    assert examine_certificates(settings(tmp_path / "new")).found == "the first start makes them"
    assert examine_certificates(settings(tmp_path / "new", monitor="192.0.2.7:1")).found == "the first start makes them"
    finding = examine_certificates(settings(state, monitor="192.0.2.7:1"))
    assert finding.ok
    assert finding.found == "good: monitor, agent"


@pytest.mark.parametrize("name", ["ca.key", "ca.pem", "certificates", "certificates/monitor.pem"])
def test_doctor_tells_of_files_that_others_could_read(state: Path, name: str) -> None:
    path = state / "keys" / name
    path.chmod(path.stat().st_mode | 0o040)
    finding = examine_certificates(settings(state))
    assert not finding.ok
    assert f"{path} has mode" in finding.found
    assert "malletrain pki renew" in finding.remedy


def test_doctor_tells_of_an_expired_certificate_where_services_run(state: Path) -> None:
    later = time.time() + 2 * DAY
    assert examine_certificates(settings(state), later).ok
    with socket.create_server(("127.0.0.1", 0)) as server:
        running = settings(state, monitor=f"127.0.0.1:{server.getsockname()[1]}")
        assert examine_certificates(running).ok
        finding = examine_certificates(running, later)
    assert not finding.ok
    assert "monitor.pem has expired" in finding.found


def test_doctor_tells_of_a_foreign_certificate(tmp_path: Path, state: Path) -> None:
    ours = state / "keys/certificates/monitor.pem"
    shutil.copy(ensure_certificate(tmp_path / "other", "monitor", SystemClock(), DAY), ours)
    assert f"{ours} is of another CA" in examine_certificates(settings(state)).found
    shutil.copy(state / "keys/certificates/agent.pem", ours)
    assert f"{ours} is of another role" in examine_certificates(settings(state)).found
    ours.write_text("rubbish")
    assert f"{ours} can't be used" in examine_certificates(settings(state)).found


def test_doctor_tells_of_a_published_certificate_of_another_ca(tmp_path: Path, state: Path) -> None:
    publish_authority(tmp_path / "other", state / "ca.pem", SystemClock())
    assert f"{state / 'ca.pem'} is of another CA" in examine_certificates(settings(state, monitor="192.0.2.7:1")).found
    (state / "ca.pem").unlink()
    assert "ca.pem: expected a file" in examine_certificates(settings(state, monitor="192.0.2.7:1")).found


def test_doctor_looks_at_the_sites_own(tmp_path: Path) -> None:
    site = SiteAuthority(tmp_path / "site")
    tls = site.settings("192.0.2.7")
    found = Settings(state_dir=tmp_path / "state", addresses=Addresses(monitor="192.0.2.7:1"), tls=tls)
    assert examine_certificates(found).found == "good: the site's own"
    assert "has expired" in examine_certificates(found, time.time() + 40 * DAY).found
    assert tls.key_file is not None
    kept = tls.key_file.read_bytes()
    site.settings("192.0.2.7")
    tls.key_file.write_bytes(kept)
    assert "is not the key of" in examine_certificates(found).found
    tls.key_file.chmod(0o604)
    assert "mode 604" in examine_certificates(found).found


def test_every_service_has_a_role() -> None:
    assert set(SERVICE_ROLES) == set(SERVICES)
