"""The figures of the pages, and the data that they draw."""
