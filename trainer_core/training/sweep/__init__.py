"""Sweeps: one run file, trained with several values of a few settings, and ranked."""
