"""Workers that stay while others join and leave: Elastic Horovod."""
