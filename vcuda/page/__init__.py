"""The control pages; ``vcuda/lib/include/vcuda_page.h`` defines the format.

Functions from bytes to values, without I/O: ``gpu_manager.adapters.control_pages.pages`` opens, locks and
writes the files. Nothing maps them into memory, because a mapping of a file that a tenant truncates kills
its reader.
"""
