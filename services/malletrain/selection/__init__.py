"""Selection: which of several waiting jobs start now, by nodes, burst buffer and local SSD together (BBSched)."""
