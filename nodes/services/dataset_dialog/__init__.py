"""The dataset at a node: its strip and dialog, dropped files, and edited captions."""
