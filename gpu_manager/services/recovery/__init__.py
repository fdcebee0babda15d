"""What an agent does at its start: the books rebuilt, the predecessor's pods taken over, pods without
devices named.
"""
