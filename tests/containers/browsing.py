"""The dashboard of a composition, as a browser reaches it: over HTTPS, with a certificate made for the test."""

from __future__ import annotations

import http.client
import ssl
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

_SECONDS = 20.0
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
_NAME = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost and its key, for the users of containers; nobody else can enter the folder."""
    folder.chmod(0o700)
    certificate, key = folder / "dashboard.pem", folder / "dashboard.key"
    command = ["openssl", "req", "-x509", *_KEY, *_NAME, "-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    for path in (certificate, key):
        path.chmod(0o444)
    return certificate, key


@dataclass
class Browser:
    """A browser of one viewer.

    Attributes:
        port: Port of the dashboard.
        certificate: What it must prove to be.
        cookie: What it has given us.
    """

    port: int
    certificate: Path
    cookie: str = ""

    def get(self, path: str) -> tuple[int, str]:
        """Status and content of a page.

        Raises:
            OSError: it does not answer, or its certificate is another one.
        """
        return self._ask("GET", path)

    def log_in(self, token: str) -> int:
        """Send the form of the login page; returns the status. Raises as `get`."""
        headers = {"Origin": f"https://localhost:{self.port}", "Content-Type": "application/x-www-form-urlencoded"}
        return self._ask("POST", "/login", urlencode({"token": token}), headers)[0]

    def _ask(
        self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(self.certificate))
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=_SECONDS, context=context)
        try:
            shown = {"Cookie": self.cookie} if self.cookie else {}
            connection.request(method, path, body, {**(headers or {}), **shown})
            response = connection.getresponse()
            if given := response.getheader("Set-Cookie"):
                self.cookie = given.partition(";")[0]
            return response.status, response.read().decode()
        finally:
            connection.close()
