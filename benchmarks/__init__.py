"""What things cost, measured; each file is a program with `--help`."""
