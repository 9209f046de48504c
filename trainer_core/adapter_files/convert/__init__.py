"""From one layout to another."""
