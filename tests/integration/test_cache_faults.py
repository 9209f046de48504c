"""What goes wrong around a cache on the disk, and the verb ``cache`` with its exit codes."""
