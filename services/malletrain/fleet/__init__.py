"""FLEET: an ensemble of networks trained as one unit. Pure; the standard library only."""
