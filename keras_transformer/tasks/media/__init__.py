"""Base classes of tasks on images and audio."""
