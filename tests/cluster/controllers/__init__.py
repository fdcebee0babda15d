"""The product beside controllers of others, as they are published: Kueue and KubeRay's operator.

``python -m tests.cluster controllers`` builds what is not built yet, then runs these tests on the cluster.
"""
