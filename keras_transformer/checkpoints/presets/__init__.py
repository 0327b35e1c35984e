"""Presets: listing, opening, building, saving."""
