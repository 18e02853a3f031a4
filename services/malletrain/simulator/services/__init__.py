"""The pure cores of the services, driven by a simulated clock, with simulated supervisors."""
