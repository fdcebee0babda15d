"""The cluster's console: the data that it shows, and the rights needed for it."""
