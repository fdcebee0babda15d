"""The agent of a node: its settings, and the composition that builds, connects, runs and stops its parts."""
