"""`malletrain check`: what a training script can be used for, found out by running it."""
