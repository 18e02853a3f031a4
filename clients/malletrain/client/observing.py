"""Its import has the optimizer steps of this process noted; see `malletrain.client.observe`."""

from __future__ import annotations

from malletrain.client.observe import StepObserver

OBSERVER = StepObserver()
OBSERVER.install()
