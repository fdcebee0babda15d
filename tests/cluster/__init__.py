"""The product on real Kubernetes: unmodified API server, scheduler, kubelet and containerd on one machine.

``make cluster CMD=up`` starts it, ``make e2e`` runs the tests of this directory on it, ``make cluster CMD=down`` takes
it away. Everything lives in one mount and PID namespace with its own /var, /etc and /run, listens on loopback
alone, and leaves nothing behind.
"""
