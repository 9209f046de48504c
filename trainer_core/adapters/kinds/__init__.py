"""Adapter kinds: the mathematics of each, what it is in files, and their registry."""
