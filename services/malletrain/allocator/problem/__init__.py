"""From nodes, jobs and curves to an allocation problem, and what a solution is worth. Pure."""
