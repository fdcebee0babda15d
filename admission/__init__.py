"""Admission: keeps illegal pods out and pods off nodes where they do not fit, and reports the reasons.

One program with two interfaces: the webhooks that the API server calls, and the extender that the scheduler
calls. Every judgement is :mod:`gpu_manager.domain`'s; :mod:`admission.app` is the composition root.
"""
