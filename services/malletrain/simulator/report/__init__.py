"""What replays look like on paper: tables in Parquet, figures, one page."""
