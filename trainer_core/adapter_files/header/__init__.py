"""The metadata in a file's header."""
