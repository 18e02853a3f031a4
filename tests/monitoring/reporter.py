"""A trainer that does no more than report, until it is ended."""

from __future__ import annotations

import threading

from malletrain.client import report

pause = threading.Event()
while True:
    report(32)
    pause.wait(0.02)
