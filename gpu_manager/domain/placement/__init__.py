"""Placement of pods on the cards of one node: ledger, policies, trial placements, explanations."""
