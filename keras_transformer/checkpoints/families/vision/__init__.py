"""Models of images, and of images and texts."""
