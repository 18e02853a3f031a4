"""Utilities that several packages share. Standard library only; imports nothing of MalleTrain."""
