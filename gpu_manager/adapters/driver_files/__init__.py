"""The node's driver in a container: found, mounted beside libvcuda, or named in a CDI spec.

``injector`` implements :class:`gpu_manager.ports.containers.Injector`; ``driver`` finds the driver's
libraries (``host`` follows links on the node), ``device_nodes`` its device nodes; ``cdi`` decides the mounts
and writes specs; ``delivery`` installs libvcuda and records which allocation uses it; ``runtimes`` chooses a
strategy by the runtime that the kubelet uses (``node_config``).
"""
