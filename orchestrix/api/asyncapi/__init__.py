"""AsyncAPI: the catalogue of all messages, and the document that describes them."""
