"""What the five services share: configuration, servers, channels, logs, clocks, databases."""
