"""Answers being written: the hub owns their tasks, independent of any browser."""
