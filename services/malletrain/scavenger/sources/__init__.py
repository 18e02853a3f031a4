"""Where idle nodes come from."""
