"""How do two steps look in Celery?  RabbitMQ carries the tasks, PostgreSQL keeps the results."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_BROKER"], backend=f"db+{os.environ['BENCH_DATABASE']}")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    timezone="UTC",
)


def _create_repo(name: str) -> str:
    return name


def _register(name: str) -> str:
    return name


create_repo = app.task(_create_repo, name="create_repo")
register = app.task(_register, name="register")
