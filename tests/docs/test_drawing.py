"""The drawing of the architecture is the one that its source makes."""

from __future__ import annotations

from xml.etree import ElementTree

from tools.docs import drawing


def test_the_drawing_in_the_docs_is_the_one_of_its_source() -> None:
    assert drawing.PATH.read_text(encoding="utf-8") == drawing.draw(), "python -m tools.docs.drawing"


def test_every_service_stands_in_it_and_nothing_lies_outside() -> None:
    root = ElementTree.fromstring(drawing.draw())
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Scavenger", "Allocator", "JobManager", "Monitor", "Profiler"} <= texts
    width, height = map(int, root.attrib["viewBox"].split()[2:])
    for box in drawing.BOXES:
        assert 0 <= box.x <= width - box.width
        assert 0 <= box.y <= height - box.height
