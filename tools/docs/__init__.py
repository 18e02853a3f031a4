"""What the docs site has beside the pages in `docs/`: pages from elsewhere in the repository, and generated ones."""
