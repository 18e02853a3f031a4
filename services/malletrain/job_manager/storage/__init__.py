"""What JobManager keeps in its database and state folder, and for how long."""
