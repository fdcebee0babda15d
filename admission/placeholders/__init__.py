"""Placeholder pods: what an autoscaler must be told of cards that it cannot see missing."""
