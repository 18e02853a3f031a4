"""BBSched's evaluation."""
