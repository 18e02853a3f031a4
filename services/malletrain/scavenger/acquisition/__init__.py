"""Holding idle nodes by one-node batch jobs of low priority, so that the scheduler itself takes them back."""
