"""``kubectl vcuda``: what an administrator asks a whole cluster, with the rights of their own kubeconfig."""
