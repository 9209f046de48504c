"""What a step needs in memory, predicted before the run and kept to while it runs."""
