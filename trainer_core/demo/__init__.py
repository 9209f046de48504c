"""The demonstration: datasets, captions, the picture checker and the run that shows them."""
