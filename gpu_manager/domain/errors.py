"""The one tree of errors, named by who must act.

::

    VcudaError
    ├── RequestInvalid   the user: change the pod
    ├── DoesNotFit       the scheduler: choose another node, or wait
    ├── NodeUnready      the operator: driver, kubelet, disk, API server
    └── Bug              us

Adapters translate every foreign error into one of these; a traceback never reaches a person.
Texts say what happened, to which pod, card or value, and what to do about it.
"""


class VcudaError(Exception):
    """Root of the tree. ``str(error)`` is the sentence a person reads."""


class RequestInvalid(VcudaError):
    """The request can never be granted as written: the user changes the pod."""


class DoesNotFit(VcudaError):
    """The request is legal but there is no room for it here and now."""


class NodeUnready(VcudaError):
    """Something the node needs is missing or broken: the operator mends it."""


class Bug(VcudaError):
    """An invariant of ours does not hold: please report it."""
