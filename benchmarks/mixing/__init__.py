"""The trainings of `benchmarks/mixed_jobs.py`: scripts as people have them, with silences of many kinds."""
