"""Resizing a running fraction: what is asked, what is legal, what fits, and the device ids that it costs."""
