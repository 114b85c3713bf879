"""Models by name: the bundled default, files and folders on disk, the hub."""
