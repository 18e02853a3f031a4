"""Searches: trials of Optuna as jobs. The steps are decided by pure functions; Optuna is imported where it is used."""
