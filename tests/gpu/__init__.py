"""The promises of DESIGN on a real card: ``python -m tests.gpu``. No test of these runs without a card.

Groups, in the order in which time is spent: ``facts`` (a), ``memory`` (b), ``runtime`` (c), ``dispatch`` (d),
``cost`` (e), ``share`` (f), ``endings`` (g), ``frameworks`` (h), ``guesses`` (i). Each yields cases; ``plan``
runs them within the minutes that were given, ``results`` writes each row at once. ``machine`` and ``container``
are what they run on, ``observe`` watches a running program, ``traces`` records one. ``kit`` packs all of it
into a folder that runs on a machine without a network.
"""
