"""When plans are made and of what: pure, with a state that stimuli change and effects that others carry out."""
