"""What decides in a supervisor: commands in, states out, one event loop."""
