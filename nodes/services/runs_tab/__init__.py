"""The runs tab: rows, curves and what is queued, behind the routes that ask for them."""
