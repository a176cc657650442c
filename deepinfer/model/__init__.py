"""The V4.1 network and its weights: reading, writing, sharding, and the layers themselves."""
