"""HTML pages from templates, each one file that loads nothing else."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from malletrain.simulator.report import palette, wording


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
