"""From a run file to encoded samples and an adapter."""
