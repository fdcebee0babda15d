"""Decisions recorded with all that they were judged by, and judged again: see docs/adr/0025-records.md."""
