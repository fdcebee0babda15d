"""Dynamic Resource Allocation: the devices that a node publishes, and what Kubernetes allocates of them."""
