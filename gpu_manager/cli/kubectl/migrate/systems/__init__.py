"""The systems to migrate from: for each of their names its equivalent, or why there is none.

Names and meanings are those of the projects' documentation and source as of mid 2026.
"""
