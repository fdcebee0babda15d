"""Assigns parts of cards to containers: the allocator, its ledger, and the kubelet's calls that it
answers.
"""
