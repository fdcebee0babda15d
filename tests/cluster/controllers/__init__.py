"""The product beside controllers of others, as they are published: Kueue, KubeRay's operator and the coscheduling plugin.

``python -m tests.cluster controllers`` builds what is not built yet, then runs these tests on the cluster.
"""
