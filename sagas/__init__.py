"""The sagas of the service."""
