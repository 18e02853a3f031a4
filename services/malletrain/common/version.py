"""The version of MalleTrain that this process runs, whatever has been installed over its files since it started."""

from __future__ import annotations

VERSION = "0.1.0"
"""The build takes the version of the package from here."""
