"""Tasks on recordings."""
