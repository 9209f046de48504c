"""The GPU campaign: what is measured where a GPU is lent for minutes, and how (`make gpu`)."""
