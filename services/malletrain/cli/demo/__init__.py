"""`malletrain demo`: the whole system on one machine, with virtual nodes."""
