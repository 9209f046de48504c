"""Files on the disk: written whole or not at all, locked, bounded, and only where they may be."""
