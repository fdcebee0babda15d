"""The webhooks: reviews, drafts, rules as policies, checks against the cluster at create time."""
