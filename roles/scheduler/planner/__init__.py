"""What the scheduler has set out to do and is not through with: placements and evictions, as machines without I/O."""
