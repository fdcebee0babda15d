"""Gathers what :mod:`gpu_manager.domain.doctor` judges: from the machine, the agent, the API server.

Looking changes nothing. What cannot be read is None in the facts, never an error. Each module is imported by
whoever needs it: a node's doctor must not wait for the Kubernetes client.
"""
