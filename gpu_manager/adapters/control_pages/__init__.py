"""The control pages of containers: limits that the agent writes, usage that tenants write."""
