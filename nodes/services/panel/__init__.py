"""What the panel of a train node shows of its run, and what its buttons ask for."""
