"""HTML pages from templates, each one file that loads nothing else, with charts as SVG inside."""

from __future__ import annotations

import hashlib
import io
import re
from xml.etree import ElementTree

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from matplotlib import rc_context

from malletrain.simulator.report import palette, wording
from malletrain.simulator.report.palette import VARIABLES
from malletrain.simulator.report.plots import NARROW_INCHES, WIDE_INCHES, Chart


def render(template: str, **values: object) -> str:
    """Render a template of this package; an unknown variable in it is an error."""
    environment = Environment(
        loader=PackageLoader("malletrain.simulator.report", "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"share": wording.share, "number": wording.number, "span": wording.span}
    environment.globals |= {"light": palette.declarations(0), "dark": palette.declarations(1)}
    return str(environment.get_template(template).render(**values))


_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONTS = re.compile(r"font-family: [^;]*;? ?")
_DECIMALS = re.compile(r"(\.\d\d)\d+")
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def as_markup(chart: Chart) -> Markup:
    """A chart for a page, drawn for wide and for narrow screens; the style sheet shows one of the two."""
    wide, narrow = _draw(chart, WIDE_INCHES), _draw(chart, NARROW_INCHES)
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow)


def _draw(chart: Chart, width: float) -> Markup:
    buffer = io.StringIO()
    salt = hashlib.sha256(f"{chart.title} {width}".encode()).hexdigest()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure = chart.figure(width, titled=False)
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA, transparent=True)
    root = ElementTree.fromstring(buffer.getvalue())
    _simplify(root)
    _, _, *size = root.attrib["viewBox"].split()
    root.attrib.clear()
    root.set("viewBox", f"0 0 {size[0]} {size[1]}")
    root.set("role", "img")
    root.set("aria-label", chart.title)
    # In HTML, elements of SVG need no name spaces.
    text = ElementTree.tostring(root, encoding="unicode").replace(f"{{{_SVG}}}", "").replace(f"{{{_LINK}}}", "xlink:")
    return Markup(text)


def _simplify(element: ElementTree.Element) -> None:
    """Take colours from the page, leave fonts to it, and drop what only Matplotlib needs."""
    element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    for name, value in list(element.attrib.items()):
        if name == "id" and element.tag == "g":
            del element.attrib[name]
        elif name == "style":
            element.set(name, _COLOUR.sub(lambda match: VARIABLES.get(match[0], match[0]), _FONTS.sub("", value)))
        elif name == "d":
            element.set(name, _DECIMALS.sub(r"\1", " ".join(value.split())))
        elif name == f"{{{_LINK}}}href":
            del element.attrib[name]
            element.set("href", value)
    for child in list(element):
        if child.tag == f"{{{_SVG}}}style":
            element.remove(child)
        else:
            _simplify(child)
