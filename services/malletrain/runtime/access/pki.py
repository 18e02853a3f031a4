"""The installation's certification authority (CA), and the certificates by which its processes know each other.

No file is locked, since not all network file systems can do that. The CA's key is made by whoever links it first. All
other files are replaced in one step, each by one that is good by itself.
"""

from __future__ import annotations

import stat
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from malletrain.common.files import write_atomically
from malletrain.runtime.access import issuing
from malletrain.runtime.access.issuing import Authority
from malletrain.runtime.access.keys import keys_folder, make_keys_folder, make_private, private_folder, read_private
from malletrain.runtime.clock import Clock
from malletrain.runtime.errors import InvalidInputError
from malletrain.tls.files import CertificateFile, CertificateFileError, parse_certificate_file
from malletrain.tls.names import ROLES, feed_name, job_name, node_name, placeholder_name

AUTHORITY_KEY = "ca.key"
AUTHORITY_CERTIFICATE = "ca.pem"
CERTIFICATES_FOLDER = "certificates"
_PRIVATE = 0o600
_PUBLIC = 0o644


def certificate_path(state_dir: Path, role: str) -> Path:
    """Path of the certificate file of a role."""
    return keys_folder(state_dir) / CERTIFICATES_FOLDER / f"{role}.pem"


def ensure_certificate(state_dir: Path, role: str, clock: Clock, lifespan_seconds: float) -> Path:
    """Have a certificate of which less than half of its lifespan is over. Makes the CA at first need.

    Processes may do this at once: they agree on the CA, and each of their certificates is good.

    Args:
        state_dir: State folder of the installation.
        role: Whom it is for, one of `malletrain.tls.names.ROLES`.
        clock: Wall clock.
        lifespan_seconds: Lifespan of a new certificate.

    Returns:
        Path of the certificate file.

    Raises:
        InvalidInputError: there is no such role, the files can't be made or used, or they are open to others.
    """
    return _certificate(state_dir, role, clock.time(), lifespan_seconds, anew=False)


def renew_certificate(state_dir: Path, role: str, clock: Clock, lifespan_seconds: float) -> Path:
    """Make a new certificate, however good the present one is. Otherwise as `ensure_certificate`.

    Raises:
        InvalidInputError: there is no such role, the files can't be made or used, or they are open to others.
    """
    return _certificate(state_dir, role, clock.time(), lifespan_seconds, anew=True)


def issue_to_job(state_dir: Path, job_id: str, user_id: int, clock: Clock, lifespan_seconds: float) -> str:
    """A certificate for the supervisor of one job, with its key and the CA's certificate, in PEM. Makes the CA at need.

    Args:
        state_dir: State folder of the installation.
        job_id: The job.
        user_id: Number of the user as whom the job runs.
        clock: Wall clock.
        lifespan_seconds: Lifespan of the certificate.

    Raises:
        InvalidInputError: the CA can't be made or used.
    """
    return _issue(state_dir, "supervisor", (job_name(job_id, user_id),), clock, lifespan_seconds)


def issue_to_fleet(state_dir: Path, fleet_id: str, clock: Clock, lifespan_seconds: float) -> str:
    """A certificate for the feeds of a fleet's members, which is of no role. Otherwise as `issue_to_job`.

    Raises:
        InvalidInputError: the CA can't be made or used.
    """
    return _issue(state_dir, "feed", (feed_name(fleet_id),), clock, lifespan_seconds)


def issue_to_node(state_dir: Path, node: str, placeholder: int | None, clock: Clock, lifespan_seconds: float) -> str:
    """A certificate for the agent of one node. Otherwise as `issue_to_job`.

    Args:
        state_dir: State folder of the installation.
        node: Name of the node.
        placeholder: Number of the placeholder that it is for; None: an operator starts the agent.
        clock: Wall clock.
        lifespan_seconds: Lifespan of the certificate.

    Raises:
        InvalidInputError: the CA can't be made or used.
    """
    names = (node_name(node), *(() if placeholder is None else (placeholder_name(placeholder),)))
    return _issue(state_dir, "agent", names, clock, lifespan_seconds)


def _issue(state_dir: Path, subject: str, names: tuple[str, ...], clock: Clock, lifespan_seconds: float) -> str:
    try:
        authority = _authority(make_keys_folder(state_dir), clock.time())
    except OSError as error:
        raise InvalidInputError("state_dir", f"a folder with usable certificates ({error})", str(state_dir)) from error
    return _text(issuing.issue(authority, subject, clock.time(), lifespan_seconds, names))


def publish_authority(state_dir: Path, path: Path, clock: Clock) -> None:
    """Write the CA's certificate where everybody may read it. Makes the CA at first need.

    Args:
        state_dir: State folder of the installation.
        path: The file.
        clock: Wall clock.

    Raises:
        InvalidInputError: files can't be made or used, or are open to others.
    """
    try:
        content = issuing.pem(_authority(make_keys_folder(state_dir), clock.time()).certificate)
        if not path.is_file() or path.read_bytes() != content:
            write_atomically(path, content.decode("ascii"), mode=_PUBLIC)
        if stat.S_IMODE(path.stat().st_mode) != _PUBLIC:
            # The umask says how new files are by default; this one is meant to be read.
            path.chmod(_PUBLIC)
    except OSError as error:
        raise InvalidInputError("state_dir", f"a folder with usable certificates ({error})", str(state_dir)) from error


def _certificate(state_dir: Path, role: str, now: float, lifespan_seconds: float, *, anew: bool) -> Path:
    if role not in ROLES:
        raise InvalidInputError("role", f"one of {', '.join(ROLES)}", role)
    if not lifespan_seconds > 0:
        raise InvalidInputError("lifespan_seconds", "more than 0", lifespan_seconds)
    path = certificate_path(state_dir, role)
    try:
        authority = _authority(make_keys_folder(state_dir), now)
        private_folder(path.parent)
        if anew or not _is_good(path, authority, role, now):
            write_atomically(path, _text(issuing.issue(authority, role, now, lifespan_seconds)), mode=_PRIVATE)
    except OSError as error:
        raise InvalidInputError("state_dir", f"a folder with usable certificates ({error})", str(state_dir)) from error
    return path


def _authority(folder: Path, now: float) -> Authority:
    key = _authority_key(folder / AUTHORITY_KEY)
    path = folder / AUTHORITY_CERTIFICATE
    if not path.exists():
        make_private(path, _new_authority(key, now))
    certificate = _authority_certificate(path)
    if certificate is None or certificate.public_key() != key.public_key() or not issuing.is_current(certificate, now):
        write_atomically(path, _new_authority(key, now), mode=_PRIVATE)
        certificate = x509.load_pem_x509_certificate(read_private(path))
    return Authority(key, certificate)


def _new_authority(key: ec.EllipticCurvePrivateKey, now: float) -> str:
    return issuing.pem(issuing.authority_certificate(key, now)).decode("ascii")


def _authority_key(path: Path) -> ec.EllipticCurvePrivateKey:
    if not path.exists():
        make_private(path, issuing.private_pem(issuing.new_key()).decode("ascii"))
    content = read_private(path)
    try:
        key = serialization.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidInputError(str(path), "a private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInputError(str(path), "a private key on an elliptic curve")
    return key


def _authority_certificate(path: Path) -> x509.Certificate | None:
    """What the file holds; None if there is no certificate in it."""
    content = read_private(path)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        return None


def _is_good(path: Path, authority: Authority, role: str, now: float) -> bool:
    """Whether there is a file with a certificate of this CA for this role, and less than half of it is over."""
    try:
        file = parse_certificate_file(read_private(path), path)
    except (FileNotFoundError, CertificateFileError):
        return False
    if not issuing.is_issued_by(file, authority, role):
        return False
    return issuing.is_current(x509.load_pem_x509_certificate(file.certificate), now)


def _text(parts: CertificateFile) -> str:
    return (parts.private_key + parts.certificate + parts.authority).decode("ascii")
