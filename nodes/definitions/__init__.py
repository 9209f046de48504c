"""One module a node: its schema and what it executes."""
