"""Which settings would have trained more on an installation's own past. Pure."""
