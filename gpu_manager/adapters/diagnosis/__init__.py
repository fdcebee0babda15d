"""Gathers the facts that :mod:`gpu_manager.domain.doctor` judges: from the machine, the agent, the API
server.

Gathering changes nothing. Unreadable facts are None, never an error. Each module is imported only where it is
needed: a node's doctor must not wait for the Kubernetes client.
"""
