"""`malletrain top`: nodes, jobs, rates and events, live in a terminal."""
