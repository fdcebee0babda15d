"""Share NVIDIA cards between Kubernetes pods."""
