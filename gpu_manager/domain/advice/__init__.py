"""What size a running container should have, from what it was seen to need."""
