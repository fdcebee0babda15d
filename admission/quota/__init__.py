"""How much of which model a namespace may hold, and what it holds."""
