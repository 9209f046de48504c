"""The files of a base: headers, number formats, reading, building. Knows no family."""
