"""What-if questions: simulation, defragmentation, and what the scheduler would allow."""
