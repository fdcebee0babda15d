"""Enforces limits and observes usage: evasion, time sharing, driver memory limits, elastic limits, resizing,
messages of the library.
"""
