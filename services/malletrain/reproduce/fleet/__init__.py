"""FLEET's evaluation."""
