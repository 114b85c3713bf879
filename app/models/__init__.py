"""The models that this server may load: one host for each, and the pool that says which of them are in memory."""
