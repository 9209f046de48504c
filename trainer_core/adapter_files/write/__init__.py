"""From an adapter's state to a file."""
