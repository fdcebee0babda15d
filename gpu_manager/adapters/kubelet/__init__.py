"""Clients of the kubelet: its device assignments, plugin registration, detection of its restarts.

The only package that speaks to the kubelet's sockets and reads its checkpoint file.
"""
