"""Training scripts for `malletrain check`: a good one, and others with one known fault each."""
