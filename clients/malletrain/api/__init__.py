"""What `import malletrain` offers: jobs and functions on idle nodes, from Python. Needs the base install only."""
