"""Environment actors for post-training: each module imports the standard library and its own actor's extra only."""
