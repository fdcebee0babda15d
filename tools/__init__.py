"""Programs of the project's own build."""
