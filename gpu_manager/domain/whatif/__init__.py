"""What would happen if: simulation, defragmentation, and what the scheduler would allow there."""
