"""Whether a node is well, before the first worker starts there: measured, then judged, and an operator's own script."""
