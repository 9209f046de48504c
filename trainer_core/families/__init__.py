"""One folder per model architecture, behind one contract (`family.Family`)."""
