"""Which workers hold up the others of their job, and which nodes jobs of several owners call slow. Pure."""
