"""The colours of charts and pages, light and dark.

Those of series are told apart by colour-blind readers, the first ones after Okabe and Ito (2008). A chart is drawn in
the light colours; in a page each of them becomes a variable, which the reader's setting of light or dark decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

_COLOURS: Mapping[str, tuple[str, str]] = {
    "background": ("#ffffff", "#15181d"),
    "panel": ("#f4f6f8", "#1f242b"),
    "text": ("#1c1f24", "#eceff3"),
    "faint": ("#565d68", "#aab2bd"),
    "line": ("#d4d8de", "#39404a"),
    "grid": ("#e3e6ea", "#2c323a"),
    "link": ("#005a8f", "#8fd0f5"),
    "warn": ("#fff1d6", "#4a3500"),
    "warn-text": ("#5c3b00", "#ffe3a8"),
    "ours": ("#0072b2", "#4aa8e0"),
    "baseline": ("#c04a00", "#f0763a"),
    "limit": ("#00805c", "#3cc9a0"),
    "muted": ("#868d97", "#7f8894"),
    "fourth": ("#a0468a", "#d98cc3"),
    "fifth": ("#b27700", "#f0b429"),
    "sixth": ("#14148c", "#9aa0ff"),
    "seventh": ("#8c0000", "#ff9c94"),
    "eighth": ("#5c6b00", "#c5d86d"),
    "ninth": ("#2f8f9d", "#6fd6e3"),
}

VARIABLES: Mapping[str, str] = MappingProxyType({light: f"var(--{name})" for name, (light, _) in _COLOURS.items()})
"""What stands in a page for each light colour."""


def _light(name: str) -> str:
    return _COLOURS[name][0]


OURS, BASELINE, LIMIT, MUTED = _light("ours"), _light("baseline"), _light("limit"), _light("muted")
TEXT, FAINT, GRID, BACKGROUND = _light("text"), _light("faint"), _light("grid"), _light("background")
SERIES: Sequence[str] = tuple(
    _light(name)
    for name in ("ours", "baseline", "limit", "fourth", "fifth", "sixth", "seventh", "ninth", "eighth", "muted")
)
"""The colours of the series of a chart, in turn."""


def declarations(place: int) -> str:
    """The variables in CSS: of light (0) or dark (1)."""
    return " ".join(f"--{name}: {colours[place]};" for name, colours in _COLOURS.items())
