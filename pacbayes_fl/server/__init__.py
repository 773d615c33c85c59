"""The half of every method that runs at the server."""
