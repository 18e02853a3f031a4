"""Makes keys and certificates of the installation's certification authority (CA). Pure but for randomness."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from malletrain.tls.files import CertificateFile
from malletrain.tls.names import DOMAIN, SERVICE_ROLES, name_of

AUTHORITY_LIFESPAN_SECONDS = 10 * 366 * 86400.0
_EARLIER_SECONDS = 300.0
"""Certificates are valid from this long before they are made: clocks of other machines may be behind."""
_LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
_PURPOSES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


@dataclass(frozen=True)
class Authority:
    """The installation's CA, which signs certificates.

    Attributes:
        key: Signs certificates.
        certificate: Its own, by which the others are verified.
    """

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def new_key() -> ec.EllipticCurvePrivateKey:
    """A new key on the curve P-256."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key in PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def pem(certificate: x509.Certificate) -> bytes:
    """A certificate in PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def authority_certificate(key: ec.EllipticCurvePrivateKey, now: float) -> x509.Certificate:
    """The certificate of a CA. One key always has the same name, so that a new one verifies what is signed already.

    Args:
        now: Seconds since the epoch.
    """
    name = _authority_name(key.public_key())
    domain = x509.NameConstraints([x509.DNSName(DOMAIN)], None)
    return (
        _builder(name, name, key.public_key(), now, now + AUTHORITY_LIFESPAN_SECONDS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(domain, critical=True)
        .sign(key, hashes.SHA256())
    )


def issue(
    authority: Authority, role: str, now: float, lifespan_seconds: float, further_names: Sequence[str] = ()
) -> CertificateFile:
    """A new key and its certificate.

    Args:
        authority: Who signs.
        role: The role that the certificate names.
        now: Seconds since the epoch.
        lifespan_seconds: How long it is valid; no longer than the CA's certificate is.
        further_names: DNS names beside that of the role.
    """
    key = new_key()
    end = min(now + lifespan_seconds, authority.certificate.not_valid_after_utc.timestamp())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
    dns_names = [x509.DNSName(name) for name in (name_of(role), *further_names)]
    names = x509.SubjectAlternativeName([*dns_names, *map(x509.IPAddress, _addresses_of(role))])
    certificate = (
        _builder(subject, authority.certificate.subject, key.public_key(), now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(_PURPOSES, critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return CertificateFile(private_pem(key), pem(certificate), pem(authority.certificate))


def is_current(certificate: x509.Certificate, now: float) -> bool:
    """Whether a certificate is valid, and half of its lifespan is not over.

    Args:
        certificate: Made by `issue` or `authority_certificate`.
        now: Seconds since the epoch.
    """
    return certificate.not_valid_before_utc.timestamp() <= now < half_time(certificate)


def half_time(certificate: x509.Certificate) -> float:
    """When half of the lifespan of a certificate is over and it is to be renewed, in seconds since the epoch.

    Args:
        certificate: Made by `issue` or `authority_certificate`.
    """
    start = certificate.not_valid_before_utc.timestamp()
    return (start + _EARLIER_SECONDS + certificate.not_valid_after_utc.timestamp()) / 2


def is_issued_by(file: CertificateFile, authority: Authority, role: str) -> bool:
    """Whether a file holds a certificate of this CA for this role, and the key that belongs to it."""
    try:
        certificate = x509.load_pem_x509_certificate(file.certificate)
        key = serialization.load_pem_private_key(file.private_key, None)
        certificate.verify_directly_issued_by(authority.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return (
        file.authority == pem(authority.certificate)
        and key.public_key() == certificate.public_key()
        and names.get_values_for_type(x509.DNSName) == [name_of(role)]
        and tuple(names.get_values_for_type(x509.IPAddress)) == _addresses_of(role)
    )


def _addresses_of(role: str) -> tuple[IPv4Address | IPv6Address, ...]:
    """Addresses in a service's certificate, for programs such as grpcurl; our own callers go by the role."""
    return _LOOPBACK if role in SERVICE_ROLES else ()


def _authority_name(key: ec.EllipticCurvePublicKey) -> x509.Name:
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    name = f"MalleTrain {hashlib.sha256(encoded).hexdigest()[:16]}"
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: float, end: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(start - _EARLIER_SECONDS, UTC))
        .not_valid_after(datetime.fromtimestamp(end, UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
