"""Two parsers of orders that cannot share a virtual environment."""
