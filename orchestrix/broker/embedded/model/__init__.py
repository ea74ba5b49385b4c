"""Model: exchanges, queues and deliveries of the embedded broker."""
