"""Objects of Kubernetes as the domain reads them: pods, constraints, host resources, budgets. Pure."""
