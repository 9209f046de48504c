"""Adapter files: read, write, convert, verify, and tools on them; a room for each.

A family's names come as a `KeyMap`. Why it is so: docs/decisions/0012-adapter-files.md.
"""
