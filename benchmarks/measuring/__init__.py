"""What the benchmarks share: what is compared, how it is measured, and what was promised."""
