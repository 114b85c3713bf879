"""The Litestar app around the engine: HTTP surfaces, storage, command line. The engine knows nothing of it."""
