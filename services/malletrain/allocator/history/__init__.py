"""What the Allocator has stored: plans, the idle set, times of growths."""
