"""``kubectl vcuda``: commands about the whole cluster, run with the rights of the caller's kubeconfig."""
