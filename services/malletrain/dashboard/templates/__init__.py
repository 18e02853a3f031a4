"""The pages' HTML."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, Template, select_autoescape

from malletrain.dashboard.templates.files import address_of


@cache
def _environment() -> Environment:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=select_autoescape(default=True), trim_blocks=True)
    environment.globals["file"] = address_of
    return environment


def template(name: str) -> Template:
    """A template: `page.html` of every page, `told.html` of what is told of an action that was not done, `denied.html`.

    The last is shown to those who show no token.
    """
    return _environment().get_template(name)
