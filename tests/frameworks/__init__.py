"""Elastic trainings inside of other frameworks: `make test-frameworks`."""
