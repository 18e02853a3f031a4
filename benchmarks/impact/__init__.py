"""What the main queue of a real Slurm notices of us."""
