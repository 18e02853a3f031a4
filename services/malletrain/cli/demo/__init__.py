"""`malletrain demo`: the whole system at work on one machine, on virtual nodes."""
