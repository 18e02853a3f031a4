"""Colours: read by everybody, also by who is colour-blind, in light and dark."""

from __future__ import annotations

import itertools
import math

import pytest

from malletrain.dashboard.figures.colours import THEMES, Colours
from malletrain.model.node_use import NodeUse

# Machado, Oliveira and Fernandes 2009, severity 1: what linear RGB becomes for who lacks one kind of cone.
BLIND = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
NORMAL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
Matrix = tuple[tuple[float, float, float], ...]


def linear(colour: str) -> tuple[float, ...]:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def luminance(colour: str) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def seen(colour: str, eyes: Matrix) -> tuple[float, ...]:
    """A colour in CIELAB (D65), as eyes see it."""
    rgb = [min(1.0, max(0.0, sum(w * part for w, part in zip(row, linear(colour), strict=True)))) for row in eyes]
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (
        value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116
        for value in (
            sum(w * part for w, part in zip(row, rgb, strict=True)) / of for row, of in zip(to_xyz, white, strict=True)
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, eyes: Matrix) -> float:
    return math.dist(seen(one, eyes), seen(other, eyes))


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_text_and_axes_stand_out(theme: Colours) -> None:
    assert contrast(theme.text, theme.background) >= 7.0
    assert contrast(theme.faint, theme.background) >= 4.5


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_lines_and_bars_stand_out(theme: Colours) -> None:
    used = [colour for use, colour in theme.uses.items() if use is not NodeUse.UNASSIGNED]
    for colour in (*theme.jobs, *used):
        assert contrast(colour, theme.background) >= 2.0, colour
    for colour in (theme.first, theme.second):
        assert contrast(colour, theme.background) >= 3.0, colour


@pytest.mark.parametrize("eyes", [NORMAL, *BLIND.values()], ids=["normal", *BLIND])
@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
@pytest.mark.parametrize(("kind", "least"), [("uses", 11.0), ("jobs", 20.0), ("lines", 60.0)])
def test_what_is_side_by_side_is_told_apart(theme: Colours, eyes: Matrix, kind: str, least: float) -> None:
    nobodys = theme.uses[NodeUse.UNASSIGNED]
    colours = {"uses": tuple(theme.uses.values()), "jobs": (*theme.jobs, nobodys), "lines": (theme.first, theme.second)}
    nearest = min((distance(one, other, eyes), one, other) for one, other in itertools.combinations(colours[kind], 2))
    assert nearest[0] >= least, nearest
