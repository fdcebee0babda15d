"""Who gets which part of which card: the allocator, its books, and the calls of the kubelet it answers."""
