"""The CA: made once, for its owner only; certificates are renewed when half of their lifespan is over."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from malletrain.runtime.access.pki import ensure_certificate
from malletrain.runtime.errors import InvalidInputError
from malletrain.tls.files import read_certificate_file
from malletrain.tls.names import ROLES, SERVICE_ROLES
from tests.support.clocks import ManualClock

DAY = 86400.0
NOW = 1.8e9


def made(state_dir: Path, role: str = "agent", now: float = NOW) -> Path:
    return ensure_certificate(state_dir, role, ManualClock(now), DAY)


def leaf(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(read_certificate_file(path).certificate)


def authority(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(read_certificate_file(path).authority)


@pytest.mark.usefixtures("umask")
def test_all_files_are_their_owners_only(tmp_path: Path) -> None:
    path = made(tmp_path)
    assert path == tmp_path / "keys/certificates/agent.pem"
    for folder in (tmp_path / "keys", path.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in (path, tmp_path / "keys/ca.key", tmp_path / "keys/ca.pem"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {found.name for found in (tmp_path / "keys").iterdir()} == {"ca.key", "ca.pem", "certificates"}
    assert [found.name for found in path.parent.iterdir()] == ["agent.pem"]


@pytest.mark.parametrize("role", ROLES)
def test_what_a_certificate_says(tmp_path: Path, role: str) -> None:
    path = made(tmp_path, role)
    certificate, ca = leaf(path), authority(path)
    certificate.verify_directly_issued_by(ca)
    extensions = certificate.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [f"{role}.malletrain.internal"]
    addresses = ["127.0.0.1", "::1"] if role in SERVICE_ROLES else []
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == addresses
    usage = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert certificate.not_valid_before_utc.timestamp() == NOW - 300
    assert certificate.not_valid_after_utc.timestamp() == NOW + DAY
    limits = ca.extensions.get_extension_for_class(x509.NameConstraints)
    assert limits.critical
    assert [name.value for name in limits.value.permitted_subtrees or ()] == ["malletrain.internal"]


def test_a_certificate_is_renewed_when_half_of_its_lifespan_is_over(tmp_path: Path) -> None:
    first = made(tmp_path).read_bytes()
    assert made(tmp_path, now=NOW + DAY / 2 - 2).read_bytes() == first
    path = made(tmp_path, now=NOW + DAY / 2 + 2)
    assert path.read_bytes() != first
    assert leaf(path).not_valid_after_utc.timestamp() == NOW + 1.5 * DAY + 2


def test_a_certificate_that_is_not_valid_yet_is_renewed(tmp_path: Path) -> None:
    first = leaf(made(tmp_path)).serial_number
    assert leaf(made(tmp_path, now=NOW - 3600)).serial_number != first


def test_a_certificate_that_can_not_be_used_is_made_anew(tmp_path: Path) -> None:
    path, other = made(tmp_path), made(tmp_path, "monitor")
    for content in (b"", b"rubbish", path.read_bytes()[:500], other.read_bytes(), made(tmp_path / "x").read_bytes()):
        path.write_bytes(content)
        leaf(made(tmp_path)).verify_directly_issued_by(authority(path))
        assert path.read_bytes() != content
        assert authority(path) == authority(other)


def test_a_key_that_belongs_to_another_certificate_is_noticed(tmp_path: Path) -> None:
    path = made(tmp_path)
    mine, others = read_certificate_file(path), read_certificate_file(made(tmp_path, "monitor"))
    path.write_bytes(others.private_key + mine.certificate + mine.authority)
    assert read_certificate_file(made(tmp_path)).certificate != mine.certificate


def test_a_lost_ca_certificate_is_made_anew_of_the_same_key(tmp_path: Path) -> None:
    path = made(tmp_path)
    old = authority(path)
    (tmp_path / "keys/ca.pem").unlink()
    leaf(made(tmp_path)).verify_directly_issued_by(old)
    assert authority(path) != old


def test_a_ca_certificate_that_is_half_over_is_renewed_of_the_same_key(tmp_path: Path) -> None:
    path = made(tmp_path)
    old = authority(path)
    made(tmp_path, now=NOW + 5.1 * 366 * DAY)
    assert authority(path).not_valid_after_utc > old.not_valid_after_utc
    leaf(path).verify_directly_issued_by(old)


def test_after_the_loss_of_the_ca_key_everything_is_new(tmp_path: Path) -> None:
    path = made(tmp_path)
    old = authority(path)
    (tmp_path / "keys/ca.key").unlink()
    made(tmp_path)
    assert authority(path).public_key() != old.public_key()
    leaf(path).verify_directly_issued_by(authority(path))


def test_all_who_make_it_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda role: made(tmp_path, role), ROLES * 4))
    assert len({authority(path) for path in paths}) == 1
    for path in paths:
        leaf(path).verify_directly_issued_by(authority(path))


def test_all_who_replace_a_ca_at_once_agree(tmp_path: Path) -> None:
    lost = authority(made(tmp_path)).public_key()
    (tmp_path / "keys/ca.key").unlink()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda role: made(tmp_path, role), ROLES * 4))
    paths = [made(tmp_path, role) for role in ROLES]
    assert len({authority(path) for path in paths}) == 1
    assert authority(paths[0]).public_key() != lost


def test_processes_that_make_it_at_once_agree(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from malletrain.runtime.access.pki import ensure_certificate\n"
        "from malletrain.runtime.clock import SystemClock\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "ensure_certificate(Path(sys.argv[1]), sys.argv[2], SystemClock(), 3600)"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for role in ("scavenger", "agent")
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.communicate("go\n", timeout=30)
        assert process.returncode == 0
    paths = [made(tmp_path, role, time.time()) for role in ("scavenger", "agent")]
    assert authority(paths[0]) == authority(paths[1])


@pytest.mark.parametrize("name", ["ca.key", "ca.pem", "certificates/agent.pem"])
def test_files_that_others_could_read_are_refused(tmp_path: Path, name: str) -> None:
    made(tmp_path)
    (tmp_path / "keys" / name).chmod(0o640)
    with pytest.raises(InvalidInputError, match="expected access for its owner only") as caught:
        made(tmp_path)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["keys", "keys/certificates"])
def test_folders_that_others_could_enter_are_refused(tmp_path: Path, name: str) -> None:
    made(tmp_path)
    (tmp_path / name).chmod(0o750)
    with pytest.raises(InvalidInputError, match=f"{name}: expected access for its owner only"):
        made(tmp_path)


def test_a_ca_key_that_can_not_be_used_is_refused_and_not_quoted(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "keys/ca.key").write_text("secret!")
    with pytest.raises(InvalidInputError, match=r"ca\.key: expected a private key in PEM") as caught:
        made(tmp_path)
    assert "secret!" not in str(caught.value)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="role: expected one of scavenger"):
        made(tmp_path, "../token")
    with pytest.raises(InvalidInputError, match="lifespan_seconds: expected more than 0"):
        ensure_certificate(tmp_path, "agent", ManualClock(NOW), 0.0)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="state_dir"):
        made(tmp_path / "file")
    assert not (tmp_path / "keys").exists()
