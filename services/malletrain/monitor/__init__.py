"""Monitor: progress records in, throughput and rescale stalls out."""
