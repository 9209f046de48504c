"""One module an adapter kind, and their registry."""
