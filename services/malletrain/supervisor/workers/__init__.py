"""The worker processes of a job, on this machine and behind the agents of nodes, and what their ends mean."""
