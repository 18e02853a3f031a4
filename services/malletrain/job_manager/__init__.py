"""JobManager: the queue, the jobs, and the processes that train."""
