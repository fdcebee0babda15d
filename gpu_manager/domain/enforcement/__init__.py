"""Enforcement of shares: evasion, time sharing, driver overhead, messages of the library."""
