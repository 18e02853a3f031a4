"""`malletrain trace`: files of idle fragments."""

from malletrain.cli.trace.verbs import trace_app

__all__ = ["trace_app"]
