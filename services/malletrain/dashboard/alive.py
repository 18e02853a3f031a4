"""`python -m malletrain.dashboard.alive [URL]`: whether a dashboard on this machine serves, for a container engine."""

from __future__ import annotations

import ssl
import sys
import urllib.request

_DEFAULT = "http://127.0.0.1:7706"
_SECONDS = 5.0


def run() -> None:
    """Ask; exit 1 with one line if it does not serve."""
    url = f"{sys.argv[1] if len(sys.argv) > 1 else _DEFAULT}/alive"
    context = ssl.create_default_context()
    # It is asked on loopback, where its certificate is for another name; nothing is told or believed.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS, context=context):
            pass
    except (OSError, ValueError) as error:
        sys.exit(f"error: {url}: {error}")


if __name__ == "__main__":
    run()
