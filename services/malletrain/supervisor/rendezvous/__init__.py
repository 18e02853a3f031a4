"""Where the workers of a job meet, and who may connect there."""
