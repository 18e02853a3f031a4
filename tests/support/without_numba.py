"""A plugin of pytest: Numba seems not to be installed, as on a head node without the extra `sim`."""

import sys

sys.modules["numba"] = None  # type: ignore[assignment]
