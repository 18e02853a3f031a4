"""Real trainings with several processes."""
