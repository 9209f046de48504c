"""A layer with its adapter: what it computes, in which way, and what layers share."""
