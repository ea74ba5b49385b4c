"""Which application does an ASGI server run?  For example: `uvicorn --factory app.main:create_app`."""

from orchestrix import create_app

__all__ = ["create_app"]
