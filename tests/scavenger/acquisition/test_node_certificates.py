"""The certificates that the Scavenger makes for agents, and the end of the one that those of 0.1 share."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from malletrain.runtime.access.issuing import half_time
from malletrain.runtime.access.pki import certificate_path, ensure_certificate
from malletrain.scavenger.acquisition.node_certificates import NodeCertificates
from malletrain.scavenger.sources.base import SourceError
from malletrain.tls.files import parse_certificate_file
from malletrain.tls.names import PeerNode, name_of, node_name, node_of
from tests.support.clocks import ManualClock, SetClock

NOW, DAY = 1_800_000_000.0, 86400.0


def leaf(text: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(parse_certificate_file(text.encode(), Path("it")).certificate)


def names(text: str) -> list[str]:
    found = leaf(text).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return found.get_values_for_type(x509.DNSName)


def number(text: str) -> int:
    node = node_of(names(text))
    assert node is not None
    assert node.placeholder is not None
    return node.placeholder


def test_each_names_its_role_its_node_and_a_placeholder_and_has_a_key_of_its_own(tmp_path: Path) -> None:
    certificates = NodeCertificates(tmp_path, ManualClock(NOW), DAY, 15.0)
    first, second = certificates.issue("n1"), certificates.issue("N_2")
    assert names(first)[:2] == [name_of("agent"), node_name("n1")]
    assert names(second)[:2] == [name_of("agent"), node_name("N_2")]
    assert number(first) < number(second)
    assert leaf(first).public_key() != leaf(second).public_key()
    assert not list(tmp_path.rglob("n1*"))
    assert not certificate_path(tmp_path, "agent").exists()


def test_numbers_grow_whatever_the_clock_does_and_over_restarts(tmp_path: Path) -> None:
    clock = SetClock()
    before = NodeCertificates(tmp_path, clock, DAY, 15.0)
    numbers = [number(before.issue("n1")) for _ in range(3)]
    clock.offset -= 3600.0
    numbers.append(number(before.issue("n1")))
    after = NodeCertificates(tmp_path, clock, DAY, 15.0)
    after.note_number(numbers[-1])  # its agent has reported
    numbers.append(number(after.issue("n1")))
    assert numbers == sorted(set(numbers))


def test_a_renewed_one_is_of_the_same_node_and_placeholder(tmp_path: Path) -> None:
    certificates = NodeCertificates(tmp_path, ManualClock(NOW), DAY, 15.0)
    first = certificates.issue("n1")
    renewed = certificates.renew("n1", number(first))
    assert names(renewed) == names(first)
    assert leaf(renewed).public_key() != leaf(first).public_key()
    assert node_of(names(certificates.renew("n1", None))) == PeerNode(node_name("n1"))


@pytest.mark.parametrize(
    ("lifespan", "pending", "lives"), [(DAY, 15.0, DAY), (60.0, 15.0, 315.0), (60.0, 7200.0, 7500.0)]
)
def test_the_first_one_outlives_the_wait_for_the_start(
    tmp_path: Path, lifespan: float, pending: float, lives: float
) -> None:
    certificates = NodeCertificates(tmp_path, ManualClock(NOW), lifespan, pending)
    first = certificates.issue("n1")
    assert leaf(first).not_valid_after_utc.timestamp() == NOW + lives
    assert leaf(certificates.renew("n1", 1)).not_valid_after_utc.timestamp() == NOW + lifespan


def test_one_is_due_when_half_of_its_lifespan_is_over(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    certificates = NodeCertificates(tmp_path, clock, DAY, 15.0)
    renew_at = half_time(leaf(certificates.issue("n1")))
    assert renew_at == NOW + DAY / 2
    assert not certificates.is_due(renew_at)
    clock.advance(DAY / 2)
    assert certificates.is_due(renew_at)
    assert (certificates.look_seconds, NodeCertificates(tmp_path, clock, 80.0, 15.0).look_seconds) == (60.0, 10.0)


def test_without_a_usable_ca_it_is_an_error_of_the_source(tmp_path: Path) -> None:
    certificates = NodeCertificates(tmp_path, ManualClock(NOW), DAY, 15.0)
    certificates.issue("n1")
    (tmp_path / "keys/ca.key").write_text("rubbish")
    with pytest.raises(SourceError, match="no certificate can be made for the agent of n1"):
        certificates.issue("n1")


def test_the_shared_certificate_is_deleted_once_it_has_expired_and_not_made_again(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    certificates = NodeCertificates(tmp_path, clock, DAY, 15.0)
    assert not certificates.accepts_shared
    assert not certificates.expire_shared()
    path = ensure_certificate(tmp_path, "agent", clock, DAY)
    clock.advance(DAY - 1)
    assert not certificates.expire_shared()
    clock.advance(1)
    assert certificates.expire_shared()
    assert not path.exists()
    path.write_text("rubbish")
    assert certificates.expire_shared(), "what can't be used is no reason to let anybody in"
