"""Rules for a pod's request: legal values, the rulebook with its texts, requests, pod annotations."""
