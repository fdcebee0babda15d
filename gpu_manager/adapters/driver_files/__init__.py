"""The node's driver in a container: found, mounted beside libvcuda, or named in a CDI spec.

``injector`` implements :class:`gpu_manager.ports.containers.Injector`; ``driver`` finds the driver's
libraries (``host`` follows links on the node), ``device_nodes`` its device nodes; ``content`` reads them and
decides the mounts; ``delivery`` installs libvcuda and records which allocation uses it; ``cdi`` writes specs;
``runtimes`` chooses a strategy by the runtime (``containerd``) that the kubelet uses (``kubelet_config``).
"""
