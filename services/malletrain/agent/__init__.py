"""The node agent: starts and ends workers on a node that a placeholder of ours holds. Standard library only."""
