"""What JobManager tells collectors of metrics and traces."""
