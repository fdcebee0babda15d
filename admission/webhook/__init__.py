"""The webhooks: reviews, drafts, checks against the cluster at create time."""
