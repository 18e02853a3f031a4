"""MalleTrain's evaluation."""
