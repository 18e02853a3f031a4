"""Distributed tracing by OpenTelemetry: off, and nothing of it imported, unless the settings name a collector."""
