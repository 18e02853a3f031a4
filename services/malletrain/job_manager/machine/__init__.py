"""JobManager's state machine, and what it decides by. No I/O."""
