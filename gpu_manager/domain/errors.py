"""Error classes, named by who must act, and how untrusted text is quoted in messages.

::

    VcudaError
    ├── RequestInvalid   the user: change the pod
    ├── DoesNotFit       the scheduler: choose another node, or wait
    ├── NodeUnready      the operator: driver, kubelet, disk, API server
    │   └── Tampered     the operator, about one container: it changed its control page illegally
    └── Bug              the developers

Adapters translate every foreign error into one of these; a traceback never reaches a person.
Texts say what happened, to which pod, card or value, and what to do about it.
"""

import re
from typing import Final

# ruff: noqa: N818  (an error is named by who must act; the word Error in each would add nothing)

_SHOWN_CHARACTERS = 64


class VcudaError(Exception):
    """Base class of all errors. ``str(error)`` is the message for people."""


class RequestInvalid(VcudaError):
    """The request can never be granted as written: the user must change the pod."""


class DoesNotFit(VcudaError):
    """The request is legal but there is no room for it here and now."""


class NodeUnready(VcudaError):
    """Something the node needs is missing or broken: the operator must fix it."""


class Tampered(NodeUnready):
    """A container changed its control page in a way that the library never does."""


class Bug(VcudaError):
    """An internal invariant is violated: please report it."""


def printable(text: str) -> str:
    """Escape characters that could move a terminal's cursor or break a log line, and invisible ones, with
    which two different names would read as one.
    """
    if text.isprintable() and (text.isascii() or not _UNSEEN.search(text)):
        return text
    return "".join(c if c.isprintable() and not _UNSEEN.match(c) else ascii(c)[1:-1] for c in text)


# Letters and marks without a shape of their own (Unicode's Default_Ignorable_Code_Point), and blank Braille.
_UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def quoted(value: object) -> str:
    """Format untrusted input for a message, shortened: text in quotes, a number as is, else its type."""
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
