"""Traces for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from malletrain.scavenger.idle_trace import Fragment, Trace


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """A small trace in whole seconds; at least one fragment, and perhaps nodes without any."""
    names = tuple(f"n{index}" for index in range(draw(st.integers(1, 4))))
    found: list[Fragment] = []
    for name in names:
        time = 0
        for gap, length in draw(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 30)), max_size=4)):
            begin = time + gap - (time == 0)
            time = begin + length
            found.append(Fragment(name, float(begin), float(time)))
    if not found:
        found.append(Fragment(names[0], 3.0, 9.0))
    found.sort(key=lambda fragment: fragment.idle_from_s)
    return Trace(tuple(found), names, max(fragment.idle_until_s for fragment in found))
