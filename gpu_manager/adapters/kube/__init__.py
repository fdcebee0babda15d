"""Kubernetes' API server and the kubelet's ``/pods``, behind the ports Pods and InventoryOf."""
