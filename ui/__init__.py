"""What the web page is made of: markdown, templates, static assets. Knows nothing of the app."""
