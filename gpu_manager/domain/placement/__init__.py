"""Where a request lies on one node's cards: the ledger, the policies, trial placements, explanations."""
