"""What a dataset holds and what is wrong with it, before it is trained: facts, words, pages."""
