"""The cluster as watched: nodes with their books, pods as the books see them, pods that got past the
rules.
"""
