"""ResourceClaims (DRA): what the scheduler allocated is booked and made ready, and what it may allocate is
published.
"""
