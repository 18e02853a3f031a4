"""Reports of replays: tables in Parquet, figures, an HTML page."""
