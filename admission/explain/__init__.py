"""Explains why a pod waits, and the smallest change that helps."""
