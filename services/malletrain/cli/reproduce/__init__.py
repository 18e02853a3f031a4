"""`malletrain reproduce`: the evaluations of the four papers."""
