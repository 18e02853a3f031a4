"""Checks of `malletrain doctor` on identity: the key that signs tokens, MUNGE, and certificates."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from malletrain.cli.operate.doctor_checks import Finding, judge
from malletrain.cli.shared.settings import AllSettings
from malletrain.common.accounts import AccountError
from malletrain.common.cgroups import Cgroups, open_cgroups
from malletrain.job_manager.launching.accounts import check_owner_jobs, users_can_reach
from malletrain.runtime.access.keys import KEY_FILE, keys_folder
from malletrain.runtime.access.munge import find_munge
from malletrain.runtime.access.pki import (
    AUTHORITY_CERTIFICATE,
    AUTHORITY_KEY,
    CERTIFICATES_FOLDER,
    certificate_path,
)
from malletrain.runtime.access.settings import AccessSettings
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import MalleTrainError
from malletrain.runtime.settings_file import SERVICES
from malletrain.tls.files import (
    CertificateFileError,
    read_certificate_file,
    read_certificates,
    read_private_key,
)
from malletrain.tls.names import ROLES, name_of

_OTHERS = 0o077


def examine_key(state_dir: Path) -> Finding:
    """Whether the key is its owner's alone. It is not read."""
    check, folder = "identity", keys_folder(state_dir)
    if not folder.exists():
        return Finding(check, True, f"the first start makes a key in {folder}")
    wrong = [fault for path in (folder, folder / KEY_FILE) if (fault := file_fault(path))]
    remedy = (
        f"as root: chown -R ACCOUNT: {folder} && chmod -R go= {folder}, where ACCOUNT runs the services, "
        "as which this should be run, too; if others could read the key, delete it"
    )
    return judge(check, not wrong, "; ".join(wrong) or f"the key in {folder} is readable by its owner only", remedy)


def file_fault(path: Path) -> str:
    """What is wrong with a file; empty if nothing is, or it can't be seen by us."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path}: {error.strerror}"
    if status.st_uid != os.geteuid():
        return f"{path} belongs to uid {status.st_uid}"
    return f"{path} has mode {stat.S_IMODE(status.st_mode):o}" if status.st_mode & _OTHERS else ""


def examine_run_as(settings: AllSettings) -> Finding:
    """Whether jobs can run as the settings say."""
    check, section = "jobs run as", settings.job_manager
    if section.run_as == "service":
        return Finding(check, True, 'the account that runs the services (job_manager.run_as = "service")')
    remedy = "see docs/access.md, Jobs that run as their owners"
    try:
        check_owner_jobs(section, settings.state_dir)
        python = Path(section.trainer_python)
        reachable = not python.is_absolute() or users_can_reach(python)
    except (MalleTrainError, AccountError) as error:
        return judge(check, False, error, remedy)
    return judge(check, reachable, f"their owners, in {section.jobs_dir}", f"{python} can't be reached by all users")


def examine_cgroups(open_below: Callable[[str, Callable[[str], None]], Cgroups] = open_cgroups) -> Finding:
    """Whether jobs have cgroups of their own, if this account starts JobManager in this place. They need not."""
    groups = open_below("malletrain-doctor", lambda _: None)
    if groups.folder is None:
        return Finding("cgroups", True, f"jobs have none, processes are looked for in /proc: {groups.reason}")
    return Finding("cgroups", True, f"each job has one of its own below {groups.folder.parent}")


def examine_munge(settings: AccessSettings) -> Finding:
    """Whether MUNGE can vouch for users. Only where the settings say so must it."""
    check, must = "MUNGE", settings.munge == "on"
    remedy = "install munge and start munged, or set access.munge to auto or off"
    if settings.munge == "off":
        return Finding(check, True, "off (access.munge): users need tokens from an operator")
    unused = "" if must else "not used (access.munge = auto): "
    try:
        munge = find_munge(settings)
        if munge is None:
            return judge(check, not must, f"{unused}munge and unmunge are not installed", remedy)
        user = munge.user_of(munge.make_credential())
    except MalleTrainError as error:
        return judge(check, not must, f"{unused}{error}", remedy)
    return Finding(check, True, f"vouches for {user}")


_REMEDY = "`malletrain pki renew` makes new ones; a file that others could read is deleted first: see docs/access.md"
_CONNECT_SECONDS = 0.5


def examine_certificates(settings: Settings, now: float | None = None) -> Finding:
    """Whether the certificates can be used. Those that are only due are not wrong: services renew them.

    Args:
        settings: Settings of the services.
        now: Seconds since the epoch; by default the time by this machine's clock.
    """
    now = time.time() if now is None else now
    faults = list(_own_faults(settings, now))
    faults += _public_faults(settings)
    if settings.tls.certificate_file is not None and settings.tls.key_file is not None:
        faults += _site_faults(settings.tls.certificate_file, settings.tls.key_file, now)
    return judge("certificates", not faults, "; ".join(faults) or _summary(settings), _REMEDY)


def _summary(settings: Settings) -> str:
    roles = [role for role in ROLES if certificate_path(settings.state_dir, role).exists()]
    if settings.tls.certificate_file is not None:
        roles.append("the site's own")
    if roles:
        return f"good: {', '.join(roles)}"
    return "the first start makes them"


def _own_faults(settings: Settings, now: float) -> Iterator[str]:
    """What is wrong with the installation's CA and its certificates."""
    folder = keys_folder(settings.state_dir)
    if file_fault(folder):
        return  # told by the check of the key
    paths = [folder / AUTHORITY_KEY, folder / AUTHORITY_CERTIFICATE, folder / CERTIFICATES_FOLDER]
    paths += [certificate_path(settings.state_dir, role) for role in ROLES]
    yield from (fault for path in paths if (fault := file_fault(path)))
    running = any(_answers(settings.addresses.of(service)) for service in SERVICES)
    for role in ROLES:
        path = certificate_path(settings.state_dir, role)
        if path.exists() and not file_fault(path):
            yield from (f"{path} {fault}" for fault in _leaf_faults(path, folder, role, now if running else None))


def _leaf_faults(path: Path, folder: Path, role: str, now: float | None) -> Iterator[str]:
    """What is wrong with a certificate; without a time, it may have expired."""
    try:
        file = read_certificate_file(path)
        leaf = x509.load_pem_x509_certificate(file.certificate)
        authority = x509.load_pem_x509_certificate(read_certificates(folder / AUTHORITY_CERTIFICATE))
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        leaf.verify_directly_issued_by(authority)
    except CertificateFileError as error:
        yield f"can't be used ({error})"
        return
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        yield "is of another CA"
        return
    if names.get_values_for_type(x509.DNSName) != [name_of(role)]:
        yield "is of another role"
    if now is not None and now >= leaf.not_valid_after_utc.timestamp():
        yield f"has expired ({leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC)"


def _public_faults(settings: Settings) -> Iterator[str]:
    """What is wrong with the certificates by which the services are known."""
    path = settings.authority_file
    own = keys_folder(settings.state_dir) / AUTHORITY_CERTIFICATE
    if settings.tls.authority_file is None and not own.exists():
        return  # not started yet
    try:
        content = read_certificates(path)
        x509.load_pem_x509_certificates(content)
    except (CertificateFileError, ValueError) as error:
        yield str(error)
        return
    if settings.tls.authority_file is None and content != read_certificates(own):
        yield f"{path} is of another CA"


def _site_faults(certificate_file: Path, key_file: Path, now: float) -> Iterator[str]:
    """What is wrong with the site's own certificate."""
    try:
        certificate = x509.load_pem_x509_certificates(read_certificates(certificate_file))[0]
        key = serialization.load_pem_private_key(read_private_key(key_file), None)
    except (CertificateFileError, ValueError, TypeError) as error:
        yield f"tls.certificate_file: {error}"
        return
    if key.public_key() != certificate.public_key():
        yield f"{key_file} is not the key of {certificate_file}"
    if now >= certificate.not_valid_after_utc.timestamp():
        yield f"{certificate_file} has expired ({certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC)"


def _answers(address: str) -> bool:
    """Whether something accepts connections there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
