"""The synchronous client, made of `_async`."""
