"""The `malletrain` command, one file per verb."""
