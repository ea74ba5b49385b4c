"""OpenAPI: the description of the API, as a document and as a page."""
