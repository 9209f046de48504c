"""Initialization of the factors."""
