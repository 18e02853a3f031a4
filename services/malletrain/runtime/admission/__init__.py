"""How many calls, connections and bytes each caller of a service has at a time, so that none can take it all."""
