"""The captions of samples: rules, choices, weights in brackets, lengths, and notes on them."""
