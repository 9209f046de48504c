"""What is encoded once and kept: its files, how they are made, and how they are read."""
