"""Standby processes: they have imported what jobs need, and fork workers from that within milliseconds."""
