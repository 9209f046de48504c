"""The files of a base: headers, number formats, reading, loading. Knows no family."""
