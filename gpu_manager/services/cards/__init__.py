"""The node's cards, their health and links, and the inventory that the node publishes."""
