"""What the pages show, in words, tables and numbers."""
