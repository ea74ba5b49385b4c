"""ASGI entry point: what a server runs, as in `uvicorn --factory app.main:create_app`."""

from orchestrix import create_app

__all__ = ["create_app"]
