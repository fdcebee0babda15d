"""Pods that are of use only together: judged together, their places kept for all or none (ADR 21)."""
