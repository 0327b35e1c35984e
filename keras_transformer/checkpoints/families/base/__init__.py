"""Class of a published family, and tables and conversions that several families share."""
