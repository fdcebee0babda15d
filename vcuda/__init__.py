"""libvcuda: the control pages shared with the library in the container."""
