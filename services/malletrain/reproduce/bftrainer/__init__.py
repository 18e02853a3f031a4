"""BFTrainer's evaluation."""
