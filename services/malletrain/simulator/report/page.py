"""HTML pages from templates, with the figures embedded."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from malletrain.simulator.report.plots import as_source


@dataclass(frozen=True)
class Plot:
    """A figure of a page.

    Attributes:
        caption: What it shows.
        content: The PNG.
    """

    caption: str
    content: bytes

    @property
    def source(self) -> str:
        """The figure as `src` of an image."""
        return as_source(self.content)


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
    environment.filters["share"] = lambda value: "–" if value is None else f"{100 * value:.1f} %"
    environment.filters["number"] = _number
    return str(environment.get_template(template).render(**values))


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
