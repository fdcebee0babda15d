"""Protocols between services and adapters. Each port has at most five methods.

Adapters implement them, tests have hand-written fakes, and ``agent`` connects services with adapters.
All methods are thread-safe and raise only errors of :mod:`gpu_manager.domain.errors`.
"""
