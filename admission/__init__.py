"""Admission: nothing illegal gets in, nothing lands where it does not fit, and whoever is refused learns why.

One program, two doors: the webhooks that the API server calls, and the extender that the scheduler calls.
Every judgement is :mod:`gpu_manager.domain`'s; :mod:`admission.app` composes, the rest meets no client.
"""
