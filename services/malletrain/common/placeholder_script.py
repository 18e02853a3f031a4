"""How the script of a placeholder hands over what the agent needs, where its own standard input can't."""

from __future__ import annotations

CERTIFICATE_MARK = "# certificate: "
"""Begins the line with the certificate in base64 in the script of a PBS job: a comment, should anything run it."""
