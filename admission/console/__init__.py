"""The cluster's console: what it shows, and who may see it."""
