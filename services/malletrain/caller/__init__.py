"""What callers of the services need: where these are, what is shown to them, how a job is asked for."""
