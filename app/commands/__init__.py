"""The subcommands of `pagewell`, one file each. What is slow to import is imported inside the functions."""
