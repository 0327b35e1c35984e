"""Functions that choose an implementation by backend and device; see README.md."""
