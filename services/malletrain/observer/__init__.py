"""What the five services say of nodes, jobs and plans, as one history: for the dashboard and for the command."""
