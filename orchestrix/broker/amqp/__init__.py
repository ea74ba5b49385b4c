"""AMQP: the broker port over a connection to RabbitMQ."""
