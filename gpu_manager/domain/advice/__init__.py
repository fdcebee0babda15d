"""Advice on a running container's size, from its observed demand."""
