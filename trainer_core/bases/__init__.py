"""A base: where it is, which family it is of, its weights, merging into it and comparing two."""
