"""Limits held and watched: usage, evasion, time sharing, driver memory limits, elastic limits, library
messages.
"""
