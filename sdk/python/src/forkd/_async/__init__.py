"""The asynchronous client. `_sync` is made of it."""
