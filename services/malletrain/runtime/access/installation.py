"""What a process of the services needs to check calls and to make its own."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

import grpc

from malletrain.common.addresses import is_loopback
from malletrain.runtime.access.certificate_renewal import CertificateRenewal
from malletrain.runtime.access.credentials import ServiceCredential
from malletrain.runtime.access.identity import Role
from malletrain.runtime.access.interceptor import AccessInterceptor, TokenChecker
from malletrain.runtime.access.keys import keys_folder, load_key, owner_file
from malletrain.runtime.access.pki import certificate_path
from malletrain.runtime.access.revocation import RevocationFile
from malletrain.runtime.access.token_file import READABLE, VIEWER, VIEWER_TOKEN, TokenFile, ViewerFolder
from malletrain.runtime.access.tokens import Tokens
from malletrain.runtime.clock import Clock
from malletrain.runtime.config import Settings
from malletrain.runtime.errors import InvalidInputError
from malletrain.tls.credentials import public_server_credentials
from malletrain.tls.files import CertificateFileError

_FILE_LIFESPAN_SECONDS = 86400.0


@dataclass(frozen=True)
class Installation:
    """The key of an installation, and what follows from it for its services.

    Attributes:
        settings: Settings that all services share.
        tokens: Signs and verifies tokens.
        revoked: Tokens that are no longer valid.
        clock: Wall clock.
    """

    settings: Settings
    tokens: Tokens
    revoked: RevocationFile
    clock: Clock

    def interceptor(self, service: str) -> AccessInterceptor:
        """What checks the calls of a service."""
        reflection = self.settings.access.reflection
        on_loopback = is_loopback(self.settings.addresses.of(service))
        is_open = reflection == "on" or (reflection == "auto" and on_loopback)
        return AccessInterceptor(TokenChecker(self.tokens, self.revoked, service), open_reflection=is_open)

    def credential(self, service: str) -> ServiceCredential:
        """What a service shows when it calls others."""
        return ServiceCredential(self.tokens, service, self.clock)

    def certificates(self, *services: str) -> CertificateRenewal:
        """Keeps the certificates that these services need, and the CA's, which everybody may read."""
        settings = self.settings
        roles = [name for name in services if self._site_certificate(name) is None]
        published = settings.own_authority_file
        return CertificateRenewal(settings.state_dir, roles, self.clock, settings.tls.lifespan_seconds, published)

    def _site_certificate(self, service: str) -> Path | None:
        """The site's own certificate, where a service shows that."""
        return self.settings.tls.certificate_file if self.settings.shows_site_certificate(service) else None

    def server_credentials(self, service: str) -> grpc.ServerCredentials:
        """Credentials of a service's server, once its certificate is made.

        Raises:
            InvalidInputError: its certificate can't be used.
        """
        site = self._site_certificate(service)
        try:
            if site is not None:
                return public_server_credentials(site, self.settings.tls.key_file)
            return public_server_credentials(certificate_path(self.settings.state_dir, service))
        except CertificateFileError as error:
            field = "tls.certificate_file" if site else "state_dir"
            raise InvalidInputError(field, f"a usable certificate ({error})") from error

    def owner_token(self) -> TokenFile:
        """The file by which the account that runs the services is known."""
        path = owner_file(self.settings.state_dir)
        return TokenFile(path, own_user(), self.tokens, self.revoked, self.clock, self._file_lifespan)

    def viewer_folder(self) -> ViewerFolder | None:
        """The folder with what a dashboard needs; None if there is to be none."""
        folder = self.settings.access.viewer_folder
        if folder is None:
            return None
        lifespan = self._file_lifespan
        token = TokenFile(
            *(folder / VIEWER_TOKEN, VIEWER, self.tokens, self.revoked, self.clock, lifespan, Role.VIEWER, READABLE)
        )
        return ViewerFolder(folder, token, self.settings.authority_files, lifespan)

    @property
    def _file_lifespan(self) -> float:
        return min(_FILE_LIFESPAN_SECONDS, self.settings.access.max_lifespan_seconds)


def open_installation(settings: Settings, clock: Clock) -> Installation:
    """Read the key of the installation in a state folder; made if there is none.

    Raises:
        InvalidInputError: it can't be made, or is open to others.
    """
    key = load_key(settings.state_dir)
    tokens = Tokens(key, clock, settings.access.leeway_seconds)
    return Installation(settings, tokens, RevocationFile(keys_folder(settings.state_dir), clock), clock)


def own_user() -> str:
    """Name of the account that runs this process; its number where it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
