"""Pods that are useful only together: judged together, with places for all or none (ADR 21)."""
