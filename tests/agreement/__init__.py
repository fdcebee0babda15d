"""What the stand-ins of the sandbox and the real parts of Kubernetes must both do: one table of cases.

A case asks something of a :class:`~tests.agreement.world.World` and returns what was seen; the table says what
that must be. ``tests/component/test_agreement_*.py`` run every case on the stand-ins,
``tests/cluster/test_agreement.py`` on the real parts. What the table expects was seen on the real ones; where
a stand-in differs, the stand-in is wrong.
"""
