"""Workers that are all restarted at every change: torchrun, plain Horovod, any command."""
