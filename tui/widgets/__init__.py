"""One widget per file; each has `show(...)`, which takes what it paints, and knows nothing of the feed's client."""
