"""Quotas of namespaces by card model, and their use."""
