"""How does `dev` run the very AMQP code that production runs, with nothing installed?"""

from app.broker.devserver.server import DevServer

__all__ = ["DevServer"]
