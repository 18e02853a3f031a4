"""What scripts log of their trainings, by job and metric: bounded histories, and where they are stored."""
