"""Groups T0 to T6: the tables that others have published, measured the same way, and the probe of turns by the hardware.

Letters of ``python3 -m tests.gpu --groups`` are a to j; these are the digits 0 to 6. docs/side-by-side.md says which table
each is beside, docs/real-card.md how the minutes are spent.
"""
