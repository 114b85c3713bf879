"""The hot operators: their contract (ops.py), their implementations, and the registry that picks one at load."""
