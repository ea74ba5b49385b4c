"""Guards: which requests the API lets in, and how many at once."""
