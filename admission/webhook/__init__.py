"""What the webhooks answer: reviews, drafts, rules as policies, checks against the cluster at create time."""
