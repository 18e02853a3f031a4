"""Studies whose question is answered: the docs quote what they found. They still run."""
