"""What the nodes do, between their schemas and the core."""
