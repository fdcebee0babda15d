"""The one tree of errors, named by who must act, and the way foreign text is shown in them.

::

    VcudaError
    ├── RequestInvalid   the user: change the pod
    ├── DoesNotFit       the scheduler: choose another node, or wait
    ├── NodeUnready      the operator: driver, kubelet, disk, API server
    │   └── Tampered     the operator, about one container: it changed what is not its own to change
    └── Bug              us

Adapters translate every foreign error into one of these; a traceback never reaches a person.
Texts say what happened, to which pod, card or value, and what to do about it.
"""

# ruff: noqa: N818  (an error is named by who must act; the word Error in each would say nothing)

_SHOWN_CHARACTERS = 64


class VcudaError(Exception):
    """Root of the tree. ``str(error)`` is the sentence a person reads."""


class RequestInvalid(VcudaError):
    """The request can never be granted as written: the user changes the pod."""


class DoesNotFit(VcudaError):
    """The request is legal but there is no room for it here and now."""


class NodeUnready(VcudaError):
    """Something the node needs is missing or broken: the operator mends it."""


class Tampered(NodeUnready):
    """A container changed its control page in a way that the library never does."""


class Bug(VcudaError):
    """An invariant of ours does not hold: please report it."""


def printable(text: str) -> str:
    """``text`` with all that could move a terminal's cursor or break a log line written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def quoted(value: object) -> str:
    """Untrusted input as one short piece of an error text: text in quotes, numbers bare, else its type."""
    if isinstance(value, str):
        cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…"
        return f'"{printable(cut)}"'
    if value is None:
        return "null"
    if isinstance(value, bool | float):
        return repr(value).lower()
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else "a number of more than 38 digits"
    return f"a {_KINDS.get(type(value), type(value).__name__)}"


_KINDS: dict[type, str] = {dict: "map", list: "list", tuple: "list", bytes: "piece of binary data"}
