"""The products of a frozen layer and its adapter, as autograd functions."""
