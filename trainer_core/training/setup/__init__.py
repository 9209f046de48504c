"""Everything before the first step: the start, the memory plan, the loaded base and data."""
