"""The agent of a node: starts and ends workers there; leaves when the node is wanted back. Standard library only."""
