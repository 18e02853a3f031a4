"""What reports of trainers come to: pure, without messages, I/O and clock."""
