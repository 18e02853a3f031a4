"""Which nodes may be used, and which placeholders hold them: pure, without messages, I/O and clock."""
