"""Nodes seen from outside: their state, what terminating pods hold, their JSON."""
