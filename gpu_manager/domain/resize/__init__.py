"""Resizing a running fraction: the requested size, its legality, its room, and its cost in device ids."""
