"""The past of an installation, read from what its services store."""
