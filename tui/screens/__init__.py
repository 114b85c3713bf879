"""Modal screens: they ask or explain, and give back an answer."""
