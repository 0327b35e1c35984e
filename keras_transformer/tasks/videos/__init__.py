"""Tasks on videos."""
