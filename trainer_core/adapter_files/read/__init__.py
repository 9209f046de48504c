"""From a file to an adapter's state."""
