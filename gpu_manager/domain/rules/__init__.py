"""What a pod may ask for: legal values, the rulebook with its texts, requests, pod annotations."""
