"""Messages of gRPC to values of the core, and back."""
