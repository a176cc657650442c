"""Training of the embedded model: the network in differentiable form, its losses, the loop.

It does not know where training data come from.
"""
