"""How a client notices new classes by itself, and how well that works."""
