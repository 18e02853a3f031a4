"""What every service is built on: how its state is stored, its stimuli recorded, and other services called."""
