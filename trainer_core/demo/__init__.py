"""The demonstration: datasets, captions, the image checker and the run that shows them."""
