"""Datasets of a graph as folders that the core reads, joined, marked and reported."""
