"""Which cards the node has, in which health, joined how; what the node publishes of them."""
