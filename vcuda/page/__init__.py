"""The control pages; ``vcuda/lib/include/vcuda_page.h`` defines the format.

Functions from bytes to values, without I/O: ``gpu_manager.adapters.control_pages.pages`` opens, locks and
writes the files. Nothing maps them into memory, because a mapping of a file that a tenant truncates kills
its reader.
"""

from vcuda.page.layout import ABI_MAJOR, ABI_MINOR, MAX_CARDS, PageError, uuid_bytes, uuid_text
from vcuda.page.limits import (
    COPY_SIZE,
    LIMITS_MAGIC,
    LIMITS_SIZE,
    CardLimits,
    Limits,
    Write,
    build_limits,
    read_limits,
    rewrite_limits,
)
from vcuda.page.usage import (
    MAX_BYTES,
    MAX_NOTES,
    MAX_NS,
    MAX_SLOTS,
    SLOT_SIZE,
    USAGE_HEAD_SIZE,
    USAGE_MAGIC,
    USAGE_SIZE,
    CardUsage,
    Note,
    NoteCode,
    Slot,
    Usage,
    build_usage,
    read_usage,
    usage_extent,
)

__all__ = [
    "ABI_MAJOR",
    "ABI_MINOR",
    "COPY_SIZE",
    "LIMITS_MAGIC",
    "LIMITS_SIZE",
    "MAX_BYTES",
    "MAX_CARDS",
    "MAX_NOTES",
    "MAX_NS",
    "MAX_SLOTS",
    "SLOT_SIZE",
    "USAGE_HEAD_SIZE",
    "USAGE_MAGIC",
    "USAGE_SIZE",
    "CardLimits",
    "CardUsage",
    "Limits",
    "Note",
    "NoteCode",
    "PageError",
    "Slot",
    "Usage",
    "Write",
    "build_limits",
    "build_usage",
    "read_limits",
    "read_usage",
    "rewrite_limits",
    "usage_extent",
    "uuid_bytes",
    "uuid_text",
]
