"""What has the embedded broker that RabbitMQ has not, or has otherwise?"""
