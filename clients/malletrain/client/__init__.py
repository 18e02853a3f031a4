"""The client in the training loop: one line, standard library only."""
