"""Tasks on time series."""
