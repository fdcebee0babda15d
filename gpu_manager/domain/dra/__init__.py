"""Dynamic Resource Allocation: what a node publishes of its cards, and what Kubernetes allocates of it."""
