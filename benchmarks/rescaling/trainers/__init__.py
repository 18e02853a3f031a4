"""The trainings that are measured, one for each way of being elastic."""
