"""Services under the floods of tests/hostile."""
