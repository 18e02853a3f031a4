"""A folder for PYTHONPATH: its `sitecustomize` has the processes that a command starts observed."""
